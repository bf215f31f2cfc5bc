"""A frozen linear map with many adapters, as one differentiable function.

The plain PyTorch path, for CPUs and for families that no kernel runs: it calls reference.py and launches no kernel. Training on
a GPU calls the kernels directly (worker/model/cuda/fused_stack.py). The frozen weight gets no gradient; backward adds the
adapters' gradients straight to the arena's gradient buffer.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from grouped_lora.adapter_spans import Group, Span
from grouped_lora.base.frozen_product import Frozen, frozen_linear, frozen_linear_backward
from grouped_lora.products import reference


@dataclass(frozen=True)
class Adapters:
    """The adapters of one pass.

    weights_RC: the arena, read only. grad_RC: its gradients, accumulated (None where no gradient is wanted). anchor: a scalar
    that requires grad, so that autograd visits layers whose input does not. keys_T: dropout's keys, where a span has dropout.
    """

    weights_RC: Tensor
    grad_RC: Tensor | None
    spans: tuple[Span, ...]
    anchor: Tensor
    keys_T: NDArray[np.uint32] | None = None


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_TK: Tensor,
        residual_TN: Tensor | None,
        anchor: Tensor,
        w_NK: Frozen,
        bias_N: Tensor | None,
        adapters: Adapters,
        group: Group,
    ) -> Tensor:
        y_TN = frozen_linear(x_TK, w_NK, residual_TN, bias_N)
        saved = reference.forward_(y_TN, x_TK, adapters.weights_RC, group, adapters.spans, adapters.keys_T)
        ctx.adapters, ctx.group, ctx.weight = adapters, group, w_NK  # the weight is frozen: nothing writes it before backward
        ctx.save_for_backward(x_TK, *saved)
        return y_TN

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_TN: Tensor) -> tuple[Tensor | None, ...]:
        x_TK, *saved = ctx.saved_tensors
        adapters: Adapters = ctx.adapters
        if adapters.grad_RC is None:
            raise RuntimeError("backward through adapters that were given no gradient buffer")
        dx_TK = frozen_linear_backward(dy_TN, ctx.weight) if ctx.needs_input_grad[0] else None
        reference.backward_(
            adapters.grad_RC, dx_TK, dy_TN, x_TK, saved, adapters.weights_RC, ctx.group, adapters.spans, adapters.keys_T
        )
        return dx_TK, dy_TN if ctx.needs_input_grad[1] else None, None, None, None, None, None


def grouped_linear(
    x_TK: Tensor,
    w_NK: Frozen,
    bias_N: Tensor | None,
    adapters: Adapters,
    group: Group,
    residual_TN: Tensor | None = None,
) -> Tensor:
    """x Wᵀ (+ bias, + residual), plus each span's adapter product: [T, N].

    Differentiable in `x_TK` and `residual_TN`; dA and dB of each span are added to `adapters.grad_RC`.
    """
    if x_TK.shape[1] != group.in_features or w_NK.shape != (group.width, group.in_features):
        raise ValueError(
            f"x {tuple(x_TK.shape)} and weight {tuple(w_NK.shape)} do not fit a group of {group.in_features} -> {group.width}"
        )
    y_TN: Tensor = _GroupedLinear.apply(x_TK, residual_TN, adapters.anchor, w_NK, bias_N, adapters, group)
    return y_TN
