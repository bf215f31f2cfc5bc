"""How tasks and jobs change state: transitions, reports applied, rewinds, conclusions, and the events that record each change.

Enters: what a placement reported, under the task's row lock. Leaves: rows and events. It must not know HTTP or who reads."""
