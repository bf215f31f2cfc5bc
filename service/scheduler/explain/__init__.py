"""Why a task waits, in reason codes and in sentences; the schedule as tenants may see it.

Enters: a problem, its decision, names. Leaves: text and resources. It must not decide anything."""
