"""Turns of generation beside training: evaluations of texts and completions, within one share of the executor's time
and the memory that training leaves.

Enters: both batches, the jobs that train, how long steps took. Leaves: passes. It must not know texts or requests."""
