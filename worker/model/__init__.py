"""The backbone and what trains on it: the arena of adapter rows, its layout and moments, the flat batch, the families.

Enters: weights and batches. Leaves: losses and gradients. It must not know jobs, tasks or
checkpoints. `plain/` is the reference in PyTorch, `cuda/` the fused path."""
