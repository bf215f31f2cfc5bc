"""Batches: several tasks posted together, planned for one objective, followed and cancelled as one.

Enters: a BatchSpec and a principal. Leaves: tasks as any others, one view of them. It must not know how plans are made."""
