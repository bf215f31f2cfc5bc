"""Stores jobs' adapters (arena rows, host memory, disk) and converts them: checkpoints, PEFT export, warm start.

Enters: rows of the arena, folders. Leaves: files and rows. It must not know losses, schedules, leases or
executors."""
