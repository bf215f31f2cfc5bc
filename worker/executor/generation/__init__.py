"""Turns of generation beside training: evaluations of texts and completions, within one share of the executor's time.

Enters: both batches, how long steps took. Leaves: their passes. It must not know jobs, texts or requests."""
