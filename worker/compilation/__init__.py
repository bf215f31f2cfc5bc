"""Kernels compiled before an executor launches them: which ones its tasks' passes will need, and the processes that compile
them.

Enters: a base's folder, the ranks and dropout of a task's jobs. Leaves: entries in Triton's cache on disk. It must not know
placements, leases or the training loop, and reads no weights."""
