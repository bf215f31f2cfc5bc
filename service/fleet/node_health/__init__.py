"""Which nodes can be trusted with work: losses counted per node and task, quarantine and its end, draining.

Enters: losses and progress of placements. Leaves: rests, quarantines, and whether a task is to blame. It must not plan."""
