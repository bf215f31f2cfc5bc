"""The executor process: the training loop, the placements attached to it, their tasks and jobs, reports, checkpoints, uploads.

Enters: placements from the daemon's pipe. Leaves: reports, checkpoints and adapters. It must not know other executors."""
