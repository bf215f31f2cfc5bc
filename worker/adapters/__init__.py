"""Where a job's adapter lies (arena rows, host memory, disk), and its ways in and out: checkpoints, PEFT export, warm start.

Enters: rows of the arena, folders. Leaves: files and rows. It must not know losses, schedules or leases."""
