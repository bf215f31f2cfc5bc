"""The grouped products as torch.library operators, so that torch.compile sees one node for each and its graph does not break.

`adapt` is the differentiable whole: y + S B over every adapter's own tokens. Its backward writes dA and dB straight into the
gradient buffer; no gradient flows out of that buffer. The executor's own passes call the kernels directly: an operator's
dispatch costs more than a launch.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from grouped_lora.gradient import Gradient
from grouped_lora.products.expand import expand
from grouped_lora.products.shrink import shrink
from grouped_lora.products.weight_gradients import weight_gradient
from grouped_lora.work_table import ClassSize, WorkTable


def _table(spans: Tensor, scales: Tensor, blocks: Tensor, sizes: Sequence[int]) -> WorkTable:
    """The work table whose classes' sizes an operator was given one after another."""
    return WorkTable(spans, scales, blocks, tuple(map(ClassSize, sizes[::3], sizes[1::3], sizes[2::3])))


@torch.library.custom_op("grouped_lora::shrink", mutates_args=())
def shrink_op(
    x: Tensor, adapters: Tensor, spans: Tensor, scales: Tensor, blocks: Tensor, sizes: Sequence[int], column: int, width: int
) -> Tensor:
    """S [T, 1, RMAX] of one matrix; ranks beyond an adapter's own are zero, and so are rows without an adapter."""
    s = x.new_zeros(x.shape[0], 1, sizes[-3])
    return shrink(x, adapters, _table(spans, scales, blocks, sizes), (column,), (width,), out=s)


@shrink_op.register_fake
def _(
    x: Tensor, adapters: Tensor, spans: Tensor, scales: Tensor, blocks: Tensor, sizes: Sequence[int], column: int, width: int
) -> Tensor:
    return x.new_empty(x.shape[0], 1, sizes[-3])


@torch.library.custom_op("grouped_lora::expand", mutates_args=())
def expand_op(
    s: Tensor, adapters: Tensor, spans: Tensor, scales: Tensor, blocks: Tensor, sizes: Sequence[int], column: int, width: int
) -> Tensor:
    """s[:, 0] @ each adapter's own rows: [T, width]."""
    return expand(s, adapters, column, width, _table(spans, scales, blocks, sizes))


@expand_op.register_fake
def _(
    s: Tensor, adapters: Tensor, spans: Tensor, scales: Tensor, blocks: Tensor, sizes: Sequence[int], column: int, width: int
) -> Tensor:
    return s.new_empty(s.shape[0], width)


@torch.library.custom_op("grouped_lora::weight_gradient", mutates_args=("grad",))
def weight_gradient_op(
    s: Tensor,
    y: Tensor,
    grad: Tensor,
    spans: Tensor,
    scales: Tensor,
    blocks: Tensor,
    sizes: Sequence[int],
    column: int,
    width: int,
) -> None:
    """Set (or add to) each adapter's rows of grad[:, column : + width]: s[:, 0]ᵀ @ y."""
    weight_gradient(s, y, Gradient(grad), _table(spans, scales, blocks, sizes), (column,), (width,))


@weight_gradient_op.register_fake
def _(
    s: Tensor,
    y: Tensor,
    grad: Tensor,
    spans: Tensor,
    scales: Tensor,
    blocks: Tensor,
    sizes: Sequence[int],
    column: int,
    width: int,
) -> None:
    return None


class _Adapt(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, adapters: Tensor, grad: Tensor, table: Sequence[Tensor], places: Sequence[int]
    ) -> Tensor:
        a, b, *sizes = places
        s = shrink_op(x, adapters, *table, sizes, a, x.shape[1])
        ctx.save_for_backward(x, s, adapters, grad, *table)
        ctx.places = places
        return y + expand_op(s, adapters, *table, sizes, b, y.shape[1])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, s, adapters, grad, *table = ctx.saved_tensors
        a, b, *sizes = ctx.places
        dy = dy.contiguous()
        ds = shrink_op(dy, adapters, *table, sizes, b, dy.shape[1])
        weight_gradient_op(s, dy, grad, *table, sizes, b, dy.shape[1])
        weight_gradient_op(ds, x, grad, *table, sizes, a, x.shape[1])
        return expand_op(ds, adapters, *table, sizes, a, x.shape[1]), dy, None, None, None, None


def adapt(x: Tensor, y: Tensor, adapters: Tensor, grad: Tensor, table: WorkTable, a: int, b: int) -> Tensor:
    """y [T, N] plus every adapter's product with x [T, K]; A starts at column `a` of `adapters`, B transposed at column `b`.

    Differentiable in x and y. dA and dB are written to `grad` [rows, W] fp32, as the table's spans say.
    """
    adapted: Tensor = _Adapt.apply(
        x, y, adapters, grad, (table.spans, table.scales, table.blocks), (a, b, *chain.from_iterable(table.sizes))
    )
    return adapted
