"""What the plan in force says of tasks, as stored: the queue, reasons that need no plan, the history of plans.

Enters: the planner's sentences (scheduler/explain/ writes them). Leaves: `waiting` of a task. It must not plan."""
