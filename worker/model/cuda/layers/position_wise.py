"""A fused layer behind its attention: o, the norms and the gated MLP, which treat each token by itself, forward and backward.
So it runs on whichever tokens it is given: all, or in the last layer those that labels are predicted from (label_tail.py).
Knows no attention and no losses. Legend: T tokens given, D hidden, F ffn; lora [rows, C]: one layer of the compute copy.
"""

from collections.abc import Sequence

from grouped_lora.block.swiglu import swiglu, swiglu_backward
from grouped_lora.gradient import Gradient
from grouped_lora.work_table import WorkTable
from torch import Tensor

from worker.model.cuda.layers.base_products import linear, linear_backward
from worker.model.cuda.layers.residual_stream import ResidualStream
from worker.model.cuda.layers.saved_activations import (
    AttentionOutput,
    AttentionOutputGradient,
    PendingResidual,
    SavedPositionWise,
)
from worker.model.cuda.layers.side_streams import GradientProduct, SideStreams
from worker.model.cuda.layers.stack_dims import StackDims
from worker.model.plain.decoder_block import BlockWeights

_GATE_UP = ("gate_proj", "up_proj")


class PositionWise:
    def __init__(self, layers: Sequence[BlockWeights], dims: StackDims, residual: ResidualStream, streams: SideStreams) -> None:
        self._layers, self._dims, self._residual, self._streams = layers, dims, residual, streams

    def forward(
        self, index: int, given: AttentionOutput, lora: Tensor, table: WorkTable
    ) -> tuple[PendingResidual, SavedPositionWise]:
        """What the next norm sums, and what `backward` reads. table: of the given tokens."""
        dims, w, residual = self._dims, self._layers[index], self._residual
        x, attended = given.x, given.attended
        s_o = self._streams.shrunk(attended, lora, table, dims.a("o_proj"), dims.matrix(index, "o_proj"))
        y = linear(attended, w.w_o, w.b_o)
        self._streams.join()
        mid = residual.pending(x, y, s_o, lora, "o_proj", w.norm_attended, table)
        x_mid, h_mid, rstd_mid = residual.add_and_norm(mid, lora, "o_proj", w.norm_mlp, table)
        s_gu = self._streams.shrunk(h_mid, lora, table, dims.a(*_GATE_UP), dims.matrix(index, "gate_proj"))
        gate_up = linear(h_mid, w.w_gate_up, w.b_gate_up)
        self._streams.join()
        act, s_down = swiglu(gate_up, s_gu, lora, dims.swiglu(index), table)
        left = residual.pending(x_mid, linear(act, w.w_down, w.b_down), s_down, lora, "down_proj", w.norm_mixed, table)
        saved = SavedPositionWise(attended, s_o, x_mid, rstd_mid, h_mid, s_gu, gate_up, s_down, mid.normed, left.normed)
        return left, saved

    def backward(
        self,
        index: int,
        dx: Tensor,
        lora: Tensor,
        grad: Gradient,
        table: WorkTable,
        products: list[GradientProduct],
        saved: SavedPositionWise,
    ) -> AttentionOutputGradient:
        """From dx [T, D] of the layer's output. Writes dB of gate and up and dA of down to the layer's `grad`, and appends to
        `products` what is still to launch."""
        dx = self._mlp_backward(index, dx, lora, grad, table, products, saved)
        dims, w = self._dims, self._layers[index]
        dy = dx if saved.normed_o is None else saved.normed_o.backward(dx, table)
        ds = None
        if saved.s_o is not None:
            ds = self._streams.shrink(dy, lora, table, dims.b("o_proj"), (dims.hidden,))
            products.append(GradientProduct(saved.s_o, dy, dims.b("o_proj"), (dims.hidden,)))
            o = dims.a("o_proj"), (dims.q_width,), None, dims.matrix(index, "o_proj")
            products.append(GradientProduct(ds, saved.attended, *o))
        dout = linear_backward(dy, w.w_o)
        self._streams.join()
        return AttentionOutputGradient(dx, dout, ds)

    def _mlp_backward(
        self,
        index: int,
        dx: Tensor,
        lora: Tensor,
        grad: Gradient,
        table: WorkTable,
        products: list[GradientProduct],
        saved: SavedPositionWise,
    ) -> Tensor:
        """The gradient of x_mid, from dx of the layer's output."""
        dims, w = self._dims, self._layers[index]
        matrix = dims.matrix(index, "gate_proj")
        dy = dx if saved.normed_down is None else saved.normed_down.backward(dx, table)
        ds_down = ds_gu = None
        if saved.s_down is not None:
            ds_down = self._streams.shrink(dy, lora, table, dims.b("down_proj"), (dims.hidden,))
            products.append(GradientProduct(saved.s_down, dy, dims.b("down_proj"), (dims.hidden,)))
        dact = linear_backward(dy, w.w_down)
        self._streams.join()
        # Also writes dB of gate and up and dA of down to `grad`: the only factor gradients that SideStreams does not make.
        dgu = swiglu_backward(saved.gate_up, dact, saved.s_gate_up, ds_down, lora, grad, dims.swiglu(index), table)
        del dact
        if saved.s_gate_up is not None:
            ds_gu = self._streams.shrink(dgu, lora, table, dims.b(*_GATE_UP), (dims.ffn, dims.ffn), x_starts=(0, dims.ffn))
            a = dims.a(*_GATE_UP), (dims.hidden,) * 2
            products.append(GradientProduct(ds_gu, saved.h_mid, *a, dropout_matrix=matrix))
        dh = linear_backward(dgu, w.w_gate_up)
        self._streams.join()
        read = saved.x_mid, saved.rstd_mid, w.norm_mlp
        return self._residual.norm_backward(dh, ds_gu, saved.s_gate_up, lora, _GATE_UP, *read, dx, table, matrix)
