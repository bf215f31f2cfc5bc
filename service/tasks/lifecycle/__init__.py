"""How tasks and jobs change state: transitions, reports applied, placements ended, rewinds, conclusions, and their events.

Enters: what a placement reported, under the task's row lock. Leaves: rows and events. It must not know HTTP or who reads."""
