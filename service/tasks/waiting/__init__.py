"""What is said of tasks that wait: reasons that need no plan, the queue of the plan in force, the history of plans.

Enters: the planner's sentences. Leaves: `waiting` of a task. Must not know: how a plan is made."""
