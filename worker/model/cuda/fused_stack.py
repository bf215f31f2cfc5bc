"""The decoder stack on CUDA: forward and backward written by hand over grouped_lora's kernels, base products in cuBLAS.

Backward is explicit, so what is saved is chosen here: the residual stream, the input of each product, and each adapter's S =
scale · X Aᵀ [T, matrices, rank class]. Gate and up are saved before the adapters' part is added, and their gradients overwrite
them. The adapters' gradients come from two kernels: swiglu_backward writes dB of gate and up and dA of down,
weight_gradients.py all others. Knows one flat batch on the device; knows no jobs, losses or optimizers. Legend: T tokens, D
hidden, F ffn; C one layer's arena columns; lora [rows, C]: one layer of the compute copy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from grouped_lora.block.packed_attention import attention
from grouped_lora.block.packed_attention_backward import AdapterInputGradient, attention_backward
from grouped_lora.block.post_norm import post_norm
from grouped_lora.block.qkv_rotary import rotary, rotary_backward
from grouped_lora.block.residual_norm import norm_backward, residual_norm
from grouped_lora.block.swiglu import SwigluColumns, swiglu, swiglu_backward
from grouped_lora.gradient import Gradient
from grouped_lora.work_table import WorkTable
from torch import Tensor

from worker.model.cuda.base_products import linear, linear_backward
from worker.model.cuda.device_batch import DeviceBatch
from worker.model.cuda.saved_activations import NormedOutput, PendingResidual, SavedActivations, SavedLayer
from worker.model.cuda.side_streams import GradientProduct, SideStreams
from worker.model.cuda.whole_norms import WholeNorms
from worker.model.plain.decoder_block import BlockShape, BlockWeights
from worker.model.sharding.weight_shards import ALL_RESIDENT, BACKWARD, FORWARD, Gathers, layer_unit


@dataclass(frozen=True)
class StackDims:
    """What every layer shares. columns: where A and B of each matrix start within one layer's part of an arena row, in the
    order that numbers the matrices for dropout."""

    shape: BlockShape
    hidden: int
    ffn: int
    columns: dict[str, tuple[int, int]]

    @property
    def heads(self) -> tuple[int, int]:
        """Heads of q and of k."""
        return self.shape.heads, self.shape.key_heads

    @property
    def eps(self) -> float:
        return self.shape.eps

    @property
    def q_width(self) -> int:
        return self.shape.heads * self.shape.head_size

    @property
    def kv_width(self) -> int:
        return self.shape.key_heads * self.shape.head_size

    def a(self, *modules: str) -> tuple[int, ...]:
        return tuple(self.columns[module][0] for module in modules)

    def b(self, *modules: str) -> tuple[int, ...]:
        return tuple(self.columns[module][1] for module in modules)

    def matrix(self, layer: int, module: str) -> int:
        """Its number among all matrices of the model."""
        return layer * len(self.columns) + list(self.columns).index(module)

    def swiglu(self, layer: int) -> SwigluColumns:
        gate, up = self.b("gate_proj", "up_proj")
        down = self.columns["down_proj"][0], self.matrix(layer, "down_proj")
        return SwigluColumns(gate, up, *down, self.shape.activation)


class FusedStack:
    """The layers of one backbone over the arena's compute copy [layers, rows, C] (a view, any strides) and its gradient.
    rotaries: tables of cos and sin, of which each layer takes one. gathers: brings a sharded layer's weights before its
    products are launched."""

    def __init__(
        self,
        layers: Sequence[BlockWeights],
        final_norm: Tensor,
        dims: StackDims,
        rotaries: Sequence[tuple[Tensor, Tensor]],
        gathers: Gathers = ALL_RESIDENT,
    ) -> None:
        self.layers, self.final_norm, self.dims = layers, final_norm, dims
        self.rotaries, self._gathers = rotaries, gathers
        self._streams = SideStreams(final_norm.device)

    def forward(
        self, x: Tensor, batch: DeviceBatch, adapters: Tensor, saved_layers: list[SavedLayer] | None, recompute: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(x, h, rstd) after the last layer: the residual stream and its final norm, [T, D] each.

        Appends to `saved_layers` if given: all that backward reads, or with `recompute` each layer's input alone.
        """
        self._streams.choose_streams(x.shape[0])
        pending = PendingResidual(x)
        for index in range(len(self.layers)):
            self._gathers.use(layer_unit(index), FORWARD)
            pending, kept = self._forward_layer(index, pending, batch, adapters)
            if saved_layers is not None:
                saved_layers.append(SavedLayer(kept.x) if recompute else kept)
        return self._add_and_norm(pending, adapters[-1], "down_proj", self.final_norm, batch.table)

    def _pending(
        self, x: Tensor, y: Tensor, s: Tensor | None, lora: Tensor, module: str, norm: Tensor | None, table: WorkTable
    ) -> PendingResidual:
        """x plus y, the base's part of the output of `module` (o or down), to be summed by the next norm."""
        if norm is None:
            return PendingResidual(x, y, s)
        rstd = post_norm(y, s, lora, self.dims.columns[module][1], self.dims.eps, table)
        return PendingResidual(x, y, normed=NormedOutput(y, rstd, norm))

    def _add_and_norm(
        self, pending: PendingResidual, lora: Tensor, module: str, weight: Tensor | None, table: WorkTable
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add up what is pending behind `module`, with the adapters `lora` of its layer, and normalise it; without a weight the
        second is the sum, too."""
        normed = pending.normed
        y_norm = (normed.rstd, normed.weight) if normed is not None else None
        b_column, eps = self.dims.columns[module][1], self.dims.eps
        given = weight if weight is not None else self.final_norm  # any: what it norms is not used
        x, h, rstd = residual_norm(pending.x, pending.y, pending.s, lora, b_column, given, eps, table, y_norm)
        return x, h if weight is not None else x, rstd

    def _forward_layer(
        self, index: int, pending: PendingResidual, batch: DeviceBatch, adapters: Tensor
    ) -> tuple[PendingResidual, SavedLayer]:
        dims, table, lora, w = self.dims, batch.table, adapters[index], self.layers[index]
        adapted = table.max_rank > 0

        def shrunk(source: Tensor, *modules: str) -> Tensor | None:
            if not adapted:
                return None
            widths, matrix = (source.shape[1],) * len(modules), dims.matrix(index, modules[0])
            return self._streams.shrink(source, lora, table, dims.a(*modules), widths, dropout_matrix=matrix)

        # The first layer adds nothing: the embedding leaves nothing pending.
        x, h, rstd = self._add_and_norm(pending, adapters[max(index - 1, 0)], "down_proj", w.norm_attention, table)
        s_qkv = shrunk(h, "q_proj", "k_proj", "v_proj")
        qkv = linear(h, w.w_qkv, w.b_qkv)
        b_qkv = dims.columns["q_proj"][1], dims.columns["k_proj"][1], dims.columns["v_proj"][1]
        self._streams.join()
        turned = qkv, s_qkv, lora, b_qkv, *self.rotaries[w.rope], batch.positions, dims.heads, table
        whole = self._whole_norms(w)
        raw = rotary(*turned, self._norms(w)) if whole is None else whole.rotary(*turned)
        attended, lse = self._attend(index, qkv, batch)
        s_o = shrunk(attended, "o_proj")
        y = linear(attended, w.w_o, w.b_o)
        self._streams.join()
        mid = self._pending(x, y, s_o, lora, "o_proj", w.norm_attended, table)
        x_mid, h_mid, rstd_mid = self._add_and_norm(mid, lora, "o_proj", w.norm_mlp, table)
        s_gu = shrunk(h_mid, "gate_proj", "up_proj")
        gate_up = linear(h_mid, w.w_gate_up, w.b_gate_up)
        self._streams.join()
        act, s_down = swiglu(gate_up, s_gu, lora, dims.swiglu(index), table)
        left = self._pending(x_mid, linear(act, w.w_down, w.b_down), s_down, lora, "down_proj", w.norm_mixed, table)
        s = {"qkv": s_qkv, "o": s_o, "gate_up": s_gu, "down": s_down}
        saved = SavedActivations(rstd, h, qkv, raw, attended, lse, x_mid, rstd_mid, h_mid, gate_up, s, mid.normed, left.normed)
        return left, SavedLayer(x, saved)

    def _attend(self, index: int, qkv: Tensor, batch: DeviceBatch) -> tuple[Tensor, Tensor]:
        """(attention's output [T, Hq D], its log-sum-exp) of layer `index`; generation attends to a cache instead."""
        shape = self.dims.shape
        return attention(qkv, batch.sequences, self.dims.heads, shape.scale, self.layers[index].window, shape.cap)

    def abandon(self) -> None:
        """Drop a pass that ended in an error. The device is idle."""
        self._streams.abandon()

    def _norms(self, w: BlockWeights) -> tuple[Tensor, Tensor, float] | None:
        """Of q and k within a head."""
        if w.q_norm is None or w.k_norm is None or self.dims.shape.whole_norms:
            return None
        return w.q_norm, w.k_norm, self.dims.eps

    def _whole_norms(self, w: BlockWeights) -> WholeNorms | None:
        """Of q and k over all heads."""
        if w.q_norm is None or w.k_norm is None or not self.dims.shape.whole_norms:
            return None
        return WholeNorms(w.q_norm, w.k_norm, self.dims.eps)

    def backward(
        self, dx: Tensor, batch: DeviceBatch, adapters: Tensor, grad: Gradient, saved_layers: list[SavedLayer]
    ) -> None:
        """dx [T, D]: the gradient of the residual stream after the last layer. Writes the adapters' gradients."""
        for index in range(len(self.layers) - 1, -1, -1):
            kept = saved_layers.pop()
            self._gathers.use(layer_unit(index), BACKWARD)
            x, saved = kept.x, kept.saved
            if saved is None:
                saved = self._forward_layer(index, PendingResidual(x), batch, adapters)[1].saved
                assert saved is not None
            products: list[GradientProduct] = []
            dx = self._mlp_backward(index, dx, batch, adapters[index], grad.layer(index), products, saved)
            dx = self._attention_backward(index, dx, batch, adapters[index], products, x, saved)
            self._streams.launch_gradients(products, grad.layer(index), batch.table)
        self._streams.launch_gradients([], grad.layer(0), batch.table)

    def _mlp_backward(
        self,
        index: int,
        dx: Tensor,
        batch: DeviceBatch,
        lora: Tensor,
        grad: Gradient,
        products: list[GradientProduct],
        saved: SavedActivations,
    ) -> Tensor:
        """The gradient of x_mid, from dx of the layer's output. Appends to `products` what is still to launch."""
        dims, table, w = self.dims, batch.table, self.layers[index]
        adapted, modules = table.max_rank > 0, ("gate_proj", "up_proj")
        matrix = dims.matrix(index, "gate_proj")
        dy = dx if saved.normed_down is None else saved.normed_down.backward(dx, table)
        ds_down = ds_gu = None
        if adapted:
            assert saved.s["down"] is not None
            ds_down = self._streams.shrink(dy, lora, table, dims.b("down_proj"), (dims.hidden,))
            products.append(GradientProduct(saved.s["down"], dy, dims.b("down_proj"), (dims.hidden,)))
        dact = linear_backward(dy, w.w_down)
        self._streams.join()
        # Also writes dB of gate and up and dA of down to `grad`: the only factor gradients that SideStreams does not make.
        dgu = swiglu_backward(saved.gate_up, dact, saved.s["gate_up"], ds_down, lora, grad, dims.swiglu(index), table)
        del dact
        if adapted:
            ds_gu = self._streams.shrink(dgu, lora, table, dims.b(*modules), (dims.ffn, dims.ffn), x_starts=(0, dims.ffn))
            products.append(GradientProduct(ds_gu, saved.h_mid, dims.a(*modules), (dims.hidden,) * 2, dropout_matrix=matrix))
        dh = linear_backward(dgu, w.w_gate_up)
        s_gu = saved.s["gate_up"]
        self._streams.join()
        normed = self._input_norm(saved.x_mid, saved.rstd_mid, w.norm_mlp)
        return norm_backward(dh, ds_gu, s_gu, lora, dims.a(*modules), *normed, dx, table, matrix)

    def _attention_backward(
        self,
        index: int,
        dx: Tensor,
        batch: DeviceBatch,
        lora: Tensor,
        products: list[GradientProduct],
        x: Tensor,
        saved: SavedActivations,
    ) -> Tensor:
        """The gradient of x, from dx of x_mid. Appends to `products` what is still to launch."""
        dims, table, w = self.dims, batch.table, self.layers[index]
        adapted, modules = table.max_rank > 0, ("q_proj", "k_proj", "v_proj")
        o_matrix, q_matrix = dims.matrix(index, "o_proj"), dims.matrix(index, "q_proj")
        dy = dx if saved.normed_o is None else saved.normed_o.backward(dx, table)
        ds_qkv = incoming = None
        if adapted:
            assert saved.s["o"] is not None
            ds_o = self._streams.shrink(dy, lora, table, dims.b("o_proj"), (dims.hidden,))
            products.append(GradientProduct(saved.s["o"], dy, dims.b("o_proj"), (dims.hidden,)))
            products.append(GradientProduct(ds_o, saved.attended, dims.a("o_proj"), (dims.q_width,), dropout_matrix=o_matrix))
            incoming = AdapterInputGradient(ds_o, lora, dims.columns["o_proj"][0], table, o_matrix)
        dout = linear_backward(dy, w.w_o)
        self._streams.join()
        formed = dims.heads, dims.shape.scale, w.window, incoming, dims.shape.cap
        dqkv = attention_backward(dout, saved.qkv, saved.attended, saved.lse, batch.sequences, *formed)
        turned, whole = (dqkv, *self.rotaries[w.rope], batch.positions, dims.heads, saved.raw), self._whole_norms(w)
        rotary_backward(*turned, self._norms(w)) if whole is None else whole.rotary_backward(*turned)
        if adapted:
            assert saved.s["qkv"] is not None
            widths, starts = (dims.q_width, dims.kv_width, dims.kv_width), (0, dims.q_width, dims.q_width + dims.kv_width)
            ds_qkv = self._streams.shrink(dqkv, lora, table, dims.b(*modules), widths, x_starts=starts)
            products.append(GradientProduct(saved.s["qkv"], dqkv, dims.b(*modules), widths, starts))
            products.append(GradientProduct(ds_qkv, saved.h, dims.a(*modules), (dims.hidden,) * 3, dropout_matrix=q_matrix))
        if index == 0:
            return dx  # nothing below the first layer learns
        dh = linear_backward(dqkv, w.w_qkv)
        self._streams.join()
        s_qkv = saved.s["qkv"]
        normed = self._input_norm(x, saved.rstd, w.norm_attention)
        return norm_backward(dh, ds_qkv, s_qkv, lora, dims.a(*modules), *normed, dx, table, q_matrix)

    def _input_norm(self, x: Tensor, rstd: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """x, 1 / rms and weight for a norm's backward. Without a norm those of one that changes nothing: its gradient is
        rstd (w g - x rstd² mean(w g x)), which is g for x = 0, rstd = 1 and w = 1."""
        if weight is None:
            return torch.zeros_like(x), torch.ones_like(rstd), torch.ones_like(self.final_norm)
        return x, rstd, weight

    def final_backward(self, dh: Tensor, x: Tensor, rstd: Tensor, batch: DeviceBatch) -> Tensor:
        """Through the final norm: dx [T, D] of dh [T, D]."""
        return norm_backward(dh, None, None, dh, (), x, rstd, self.final_norm, None, batch.table)
