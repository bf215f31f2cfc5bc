"""What is the same for every rival, as autograd functions over our kernels: norms with the residual sum, rotary, attention, and
SwiGLU of two tensors. So rivals differ in their linear maps with LoRA alone.

A rival may leave rows of its padding unwritten (LoRAFusion does), and a product with such rows would spread what they hold: so
each output that feeds a product is zeroed there.
Legend: T tokens of the rival's axis, D hidden, F ffn.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from grouped_lora.block.nonlinearities import gated, gated_gradients
from grouped_lora.block.packed_attention import attention
from grouped_lora.block.packed_attention_backward import attention_backward
from grouped_lora.block.qkv_rotary import rotary, rotary_backward
from grouped_lora.block.residual_norm import norm_backward, residual_norm
from torch import Tensor
from torch.autograd import Function

from benchmarks.rivals.layer_cell import MODULES, Factors, LayerCell
from worker.model.cuda.batches.device_batch import DeviceBatch

BLOCK = 1024


@dataclass(frozen=True)
class Axis:
    """A rival's token axis. unwritten [n]: rows that its linear maps leave unwritten; None: they write all."""

    cell: LayerCell
    batch: DeviceBatch
    unwritten: Tensor | None = None

    def clean(self, y: Tensor) -> Tensor:
        """y [T, *], zeroed in the unwritten rows."""
        return y if self.unwritten is None else y.index_fill_(0, self.unwritten, 0)


class Linears(Protocol):
    """A rival's linear maps of one layer, with its adapters. Inputs [T, in], outputs [T, out]."""

    def qkv(self, h: Tensor) -> Sequence[Tensor]: ...

    def o(self, attended: Tensor) -> Tensor: ...

    def mlp(self, h: Tensor, axis: Axis) -> Tensor: ...


class SeparateLinears(ABC):
    """Linears that are computed one by one."""

    @abstractmethod
    def linear(self, h: Tensor, module: str) -> Tensor:
        """The module's output [T, out] of h [T, in]."""

    def qkv(self, h: Tensor) -> Sequence[Tensor]:
        return [self.linear(h, module) for module in ("q_proj", "k_proj", "v_proj")]

    def o(self, attended: Tensor) -> Tensor:
        return self.linear(attended, "o_proj")

    def mlp(self, h: Tensor, axis: Axis) -> Tensor:
        return self.linear(swiglu(self.linear(h, "gate_proj"), self.linear(h, "up_proj"), axis), "down_proj")


class _Normed(Function):
    """(x', h): x' = x + y (x where y is None), and its norm. Backward adds the gradient of x' to the norm's in one kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor | None, weight: Tensor, axis: Axis) -> tuple[Tensor, Tensor]:
        total, h, rstd = residual_norm(x, y, None, x, 0, weight, axis.cell.fused.stack.dims.eps, axis.batch.table)
        ctx.save_for_backward(total, rstd, weight)
        ctx.axis, ctx.sums = axis, y is not None
        return total, axis.clean(h)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dtotal, dh = gradients
        total, rstd, weight = ctx.saved_tensors
        dx = norm_backward(dh.contiguous(), None, None, dh, (), total, rstd, weight, dtotal, ctx.axis.batch.table)
        return dx, dx if ctx.sums else None, None, None


class _Summed(Function):
    """x + y. As in a model the kernel also writes the next layer's norm, whose backward belongs to that layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, axis: Axis) -> Tensor:
        stack = axis.cell.fused.stack
        return residual_norm(x, y, None, x, 0, stack.final_norm, stack.dims.eps, axis.batch.table)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0], gradients[0], None


class _Attended(Function):
    """Rotary and attention [T, Hq D] of q, k and v, which are joined first, as our kernels read them."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, axis: Axis) -> Tensor:
        stack, batch = axis.cell.fused.stack, axis.batch
        qkv = axis.clean(torch.cat([q, k, v], 1))
        rotary(qkv, None, qkv, (0, 0, 0), *stack.rotaries[0], batch.positions, stack.dims.heads, batch.table)
        out, lse = attention(qkv, batch.sequences, stack.dims.heads, stack.dims.shape.scale)
        ctx.save_for_backward(qkv, out, lse)
        ctx.axis = axis
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        qkv, out, lse = ctx.saved_tensors
        stack, batch = ctx.axis.cell.fused.stack, ctx.axis.batch
        dims = stack.dims
        dqkv = attention_backward(gradients[0].contiguous(), qkv, out, lse, batch.sequences, dims.heads, dims.shape.scale)
        rotary_backward(dqkv, *stack.rotaries[0], batch.positions, dims.heads)
        return *dqkv.split([dims.q_width, dims.kv_width, dims.kv_width], 1), None


@triton.jit
def _swiglu(gate_ptr, up_ptr, act_ptr, count, SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    gate = tl.load(gate_ptr + at, mask=at < count).to(tl.float32)
    up = tl.load(up_ptr + at, mask=at < count).to(tl.float32)
    tl.store(act_ptr + at, gated(gate, up, False), mask=at < count)


@triton.jit
def _swiglu_backward(gate_ptr, up_ptr, dact_ptr, dgate_ptr, dup_ptr, count, SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    gate = tl.load(gate_ptr + at, mask=at < count).to(tl.float32)
    up = tl.load(up_ptr + at, mask=at < count).to(tl.float32)
    dact = tl.load(dact_ptr + at, mask=at < count).to(tl.float32)
    _, dgate, dup = gated_gradients(gate, up, dact, False)
    tl.store(dgate_ptr + at, dgate, mask=at < count)
    tl.store(dup_ptr + at, dup, mask=at < count)


class _SwiGlu(Function):
    """silu(gate) * up of two tensors [T, F]: rivals whose gate and up are two tensors need not join them."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, axis: Axis) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        act = torch.empty_like(gate)
        _swiglu[(triton.cdiv(gate.numel(), BLOCK),)](gate, up, act, gate.numel(), SIZE=BLOCK)
        ctx.save_for_backward(gate, up)
        return axis.clean(act)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        dact, dgate, dup = gradients[0].contiguous(), torch.empty_like(gate), torch.empty_like(up)
        _swiglu_backward[(triton.cdiv(gate.numel(), BLOCK),)](gate, up, dact, dgate, dup, gate.numel(), SIZE=BLOCK)
        return dgate, dup, None


def swiglu(gate: Tensor, up: Tensor, axis: Axis) -> Tensor:
    result: Tensor = _SwiGlu.apply(gate, up, axis)
    return result


def layer(x: Tensor, linears: Linears, axis: Axis) -> Tensor:
    """The layer's output [T, D] of x [T, D]."""
    w = axis.cell.weights
    x, h = _Normed.apply(x, None, w.norm_attention, axis)
    attended = _Attended.apply(*linears.qkv(h), axis)
    x, h = _Normed.apply(x, linears.o(attended), w.norm_mlp, axis)
    out: Tensor = _Summed.apply(x, linears.mlp(h, axis), axis)
    return out


def both_ways(
    x: Tensor, dy: Tensor, linears: Linears, axis: Axis, factors: Sequence[Tensor]
) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
    """(output, dX, gradients of `factors`) of x, which requires a gradient, and dy, both [T, D]."""
    out = layer(x, linears, axis)
    dx, *gradients = torch.autograd.grad(out, [x, *factors], dy)
    return out.detach(), dx, gradients


def by_adapter(gradients: Sequence[Tensor]) -> list[Factors]:
    """dA and dB of each adapter by module, of the flat list that both_ways returns for factors in that order."""
    pairs = list(zip(gradients[::2], gradients[1::2], strict=True))
    return [dict(zip(MODULES, pairs[at : at + len(MODULES)], strict=True)) for at in range(0, len(pairs), len(MODULES))]
