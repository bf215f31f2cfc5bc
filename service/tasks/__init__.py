"""Tasks and their jobs: how they are submitted, how they change state, their curves, and how clients follow them.

Enters: specs from tenants, reports from placements. Leaves: rows, events, answers. It must not know nodes' internals."""
