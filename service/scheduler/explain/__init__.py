"""Why a task waits, in reason codes and in sentences; the schedule and the history of plans as tenants may see them.

Enters: a problem, its decision, names. Leaves: text and resources. It must not decide anything."""
