"""One placement as its executor holds it: its lease, its jobs, what it has done, the events that report it.

Enters: an attached placement, and what the loop did for it. Leaves: records and reports. It must not run a step."""
