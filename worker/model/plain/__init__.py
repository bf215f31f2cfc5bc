"""The reference path in plain PyTorch, forward and backward: the oracle of the fused path, and what runs on a CPU.

Enters: a flat batch and frozen weights. Leaves: losses per label token and arena gradients. It must not know CUDA."""
