"""Generation on a GPU: prompts and decode steps through the fused layers, decode steps captured as graphs.

Enters: a batch step and a trainer of the fused path. Leaves: logits. It must not know sampling or texts."""
