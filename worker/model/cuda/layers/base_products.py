"""Products with a frozen weight on a GPU, in the precision that holds it. Knows weights and activations; knows no layers."""

import torch
from grouped_lora.base.frozen_product import Frozen, OwnProducts, dense
from torch import Tensor


def linear(x: Tensor, weight: Frozen, bias: Tensor | None) -> Tensor:
    """x Wᵀ (+ bias): [T, N]."""
    if isinstance(weight, OwnProducts):
        return weight.linear(x, None, bias)
    return torch.mm(x, dense(weight).t()) if bias is None else torch.addmm(bias, x, dense(weight).t())


def linear_backward(dy: Tensor, weight: Frozen) -> Tensor:
    """dX = dY W: [T, K]."""
    return weight.linear_backward(dy) if isinstance(weight, OwnProducts) else torch.mm(dy, dense(weight))
