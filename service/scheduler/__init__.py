"""The planner: on each relevant event it decides which task runs on which GPUs, and why the other tasks wait.

Enters: plan requests. Leaves: placements, reasons, expected starts and ends. `core/` decides, `state/` reads and writes rows,
`estimate/` predicts durations, `explain/` writes the sentences; `planner.py` is the loop, `dry_run.py` estimates a spec
before submission. It must not talk to nodes."""
