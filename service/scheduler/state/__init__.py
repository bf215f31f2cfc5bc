"""The planner's rows in and out: the snapshot it reads, the plan it writes, leases, reservations, usage shares,
what reports teach.

Enters: Postgres rows of one moment. Leaves: a `SchedulingProblem`, and placements. It must not choose a plan."""
