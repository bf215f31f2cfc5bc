"""The planner's pure core: the problem, the rules, CP-SAT, the timeline, fair shares, GPU types, preemption,
and checks of problem and plan.

Enters: a `SchedulingProblem` of plain values. Leaves: a `Decision`. It must not know a database, a clock, HTTP or a file."""
