"""Generation: many sequences of many adapters on one frozen base, in one batch that they join and leave between decode steps.

Enters: prompts as tokens, each with an adapter's arena rows and how to sample. Leaves: tokens, texts and log-probabilities.
It must not know jobs, tasks or files. `cuda/` holds the fused path; the pure parts know no tensors.
"""
