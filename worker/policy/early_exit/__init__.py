"""Early exit, that is early stopping of jobs: the policies ALTO, guarded ALTO and ASHA, their interface, and their selection.

Enters: a job's training and validation losses, all jobs' losses at a rung, their scores on each validation row, and of their
texts on each prompt. Leaves: verdicts (diverging, overfitting, underperforming) with the numbers behind them. It must not know
tensors, steps, clocks or the executor that asks.

A rung is a step at which jobs are ranked against each other; the first, at the end of warmup, is the boundary. A cut is the
decision there which of the ranked go on: those are promoted, at each rung.
"""
