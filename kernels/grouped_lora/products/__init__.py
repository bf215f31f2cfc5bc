"""The grouped products: shrink S = X Aᵀ, expand Y = S B, weight gradients dA and dB, and their plain reference.

Enters: token spans, arena rows. Leaves: products in fixed summation order. It must not know layers or matrices by name."""
