"""How long tasks take: throughput, survival under early exit, GPU types, prediction intervals, and the dry run of a task.

Enters: shapes of tasks, and measurements. Leaves: seconds with their spread. The arithmetic is pure; only `dry_run` and
`task_workload` read rows."""
