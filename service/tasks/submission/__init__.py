"""From POST /v1/tasks to a queued task: the spec is checked against what it refers to, rows are written, data is validated.

Enters: a spec and a principal. Leaves: a task with its jobs, `queued` or `failed`. It must not know nodes or plans."""
