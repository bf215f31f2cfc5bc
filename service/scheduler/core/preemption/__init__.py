"""Which running tasks give their GPUs back: to tenants that are owed them, and to much shorter tasks.

Enters: problems, plans, what runs and what is owed. Leaves: victims and whom they make room for. It must not know how a task
leaves its node."""
