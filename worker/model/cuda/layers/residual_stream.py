"""The residual stream of the fused layers: what a product adds to it is summed by the norm that reads it next. Knows no
products and no attention. Legend: T tokens, D hidden.
"""

import torch
from grouped_lora.block.post_norm import post_norm
from grouped_lora.block.residual_norm import norm_backward, residual_norm
from grouped_lora.work_table import WorkTable
from torch import Tensor

from worker.model.cuda.layers.saved_activations import NormedOutput, PendingResidual
from worker.model.cuda.layers.stack_dims import StackDims


class ResidualStream:
    """final_norm: the weight of the model's last norm."""

    def __init__(self, dims: StackDims, final_norm: Tensor) -> None:
        self._dims, self._final_norm = dims, final_norm

    def pending(
        self, x: Tensor, y: Tensor, s: Tensor | None, lora: Tensor, module: str, norm: Tensor | None, table: WorkTable
    ) -> PendingResidual:
        """x plus y, the base's part of the output of `module` (o or down), to be summed by the next norm. norm: of y, if the
        family has one."""
        if norm is None:
            return PendingResidual(x, y, s)
        rstd = post_norm(y, s, lora, self._dims.columns[module][1], self._dims.eps, table)
        return PendingResidual(x, y, normed=NormedOutput(y, rstd, norm))

    def add_and_norm(
        self, pending: PendingResidual, lora: Tensor, module: str, weight: Tensor | None, table: WorkTable
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(x, h, rstd): the sum of what is pending behind `module`, with the adapters `lora` of its layer, its norm, and 1 /
        rms; without a weight the second is the sum, too."""
        normed = pending.normed
        y_norm = (normed.rstd, normed.weight) if normed is not None else None
        b_column, eps = self._dims.columns[module][1], self._dims.eps
        given = weight if weight is not None else self._final_norm  # any: what it norms is not used
        x, h, rstd = residual_norm(pending.x, pending.y, pending.s, lora, b_column, given, eps, table, y_norm)
        return x, h if weight is not None else x, rstd

    def final_norm(self, pending: PendingResidual, lora: Tensor, table: WorkTable) -> tuple[Tensor, Tensor, Tensor]:
        """(x, h, rstd) behind the last layer, whose adapters are `lora`."""
        return self.add_and_norm(pending, lora, "down_proj", self._final_norm, table)

    def norm_backward(
        self,
        dh: Tensor,
        ds: Tensor | None,
        s: Tensor | None,
        lora: Tensor,
        modules: tuple[str, ...],
        x: Tensor,
        rstd: Tensor,
        weight: Tensor | None,
        dx: Tensor,
        table: WorkTable,
        matrix: int,
    ) -> Tensor:
        """The gradient of x, the sum that was normed and read by `modules`: dx plus what comes through the norm. Without a norm
        it is taken through one that changes nothing: a norm's gradient is rstd (w g - x rstd² mean(w g x)), which is g for x =
        0, rstd = 1 and w = 1. matrix: the number of the first module."""
        if weight is None:
            x, rstd, weight = torch.zeros_like(x), torch.ones_like(rstd), torch.ones_like(self._final_norm)
        return norm_backward(dh, ds, s, lora, self._dims.a(*modules), x, rstd, weight, dx, table, matrix)

    def final_backward(self, dh: Tensor, x: Tensor, rstd: Tensor, table: WorkTable) -> Tensor:
        """Through the final norm: dx [T, D] of dh [T, D]."""
        return norm_backward(dh, None, None, dh, (), x, rstd, self._final_norm, None, table)
