"""The planner: decides which task runs on which GPUs, event by event, and tells everybody else why they wait.

Enters: plan requests. Leaves: placements, reasons, expected starts and ends. `core/` decides, `state/` reads and writes rows,
`estimate/` predicts durations, `explain/` finds the words, `planner.py` is the loop. It must not talk to nodes."""
