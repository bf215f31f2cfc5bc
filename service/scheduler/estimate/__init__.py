"""How long tasks take: throughput, survival under early exit, prediction intervals, learned profiles.

Enters: shapes of tasks, and measurements. Leaves: seconds with their spread. The arithmetic is pure; only
`task_workload`, `drift` and `learned_profiles` read rows."""
