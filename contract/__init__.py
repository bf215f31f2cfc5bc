"""The message and document types that service and workers exchange. Depends on pydantic alone.

Enters: documents as users and workers write them. Leaves: checked values, and what follows from them by arithmetic: jobs,
schedules, rows as tokens. It must not know either side."""
