"""The decoder stack on CUDA: forward and backward written by hand over grouped_lora's kernels, base products in cuBLAS.

Backward is explicit, so what is saved is chosen here: the residual stream, the input of each product, and each adapter's S =
scale · X Aᵀ [T, matrices, rank class]. Gate and up are saved before the adapters' part is added, and their gradients overwrite
them. The adapters' gradients come from two kernels: swiglu_backward writes dB of gate and up and dA of down,
weight_gradients.py all others. A layer is its attention (here) and its position-wise part (position_wise.py); that of the last
layer is the label tail's (label_tail.py). Knows one flat batch on the device; knows no jobs, losses or optimizers. Legend: T
tokens, D hidden, d head size; C one layer's arena columns; lora [rows, C]: one layer of the compute copy.
"""

from collections.abc import Sequence

from grouped_lora.block.packed_attention import attention
from grouped_lora.block.packed_attention_backward import AdapterInputGradient, attention_backward
from grouped_lora.block.qkv_rotary import rotary, rotary_backward
from grouped_lora.gradient import Gradient
from torch import Tensor

from worker.model.cuda.batches.device_batch import DeviceBatch
from worker.model.cuda.layers.base_products import linear, linear_backward
from worker.model.cuda.layers.position_wise import PositionWise
from worker.model.cuda.layers.residual_stream import ResidualStream
from worker.model.cuda.layers.saved_activations import (
    AttentionOutput,
    AttentionOutputGradient,
    PendingResidual,
    SavedAttention,
    SavedLayer,
)
from worker.model.cuda.layers.side_streams import GradientProduct, SideStreams
from worker.model.cuda.layers.stack_dims import StackDims
from worker.model.cuda.layers.whole_norms import WholeNorms
from worker.model.plain.decoder_block import BlockWeights
from worker.model.sharding.weight_shards import ALL_RESIDENT, BACKWARD, FORWARD, Gathers, layer_unit

_QKV = ("q_proj", "k_proj", "v_proj")


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
        self.rotaries, self.gathers = rotaries, gathers
        self.streams, self.residual = SideStreams(final_norm.device), ResidualStream(dims, final_norm)
        self.position_wise = PositionWise(layers, dims, self.residual, self.streams)

    @property
    def last(self) -> int:
        """The last layer's index."""
        return len(self.layers) - 1

    def forward(
        self, x: Tensor, batch: DeviceBatch, adapters: Tensor, saved_layers: list[SavedLayer] | None, recompute: bool = False
    ) -> AttentionOutput:
        """What the last layer's position-wise part reads. Appends to `saved_layers` if given: all that backward reads, or with
        `recompute` each layer's input alone."""
        self.streams.choose_streams(x.shape[0])
        pending = PendingResidual(x)
        for index in range(self.last):
            self.gathers.use(layer_unit(index), FORWARD)
            output, attention = self._attention_forward(index, pending, batch, adapters)
            pending, position_wise = self.position_wise.forward(index, output, adapters[index], batch.table)
            if saved_layers is not None:
                saved_layers.append(SavedLayer(output.x) if recompute else SavedLayer(output.x, attention, position_wise))
        self.gathers.use(layer_unit(self.last), FORWARD)
        output, attention = self._attention_forward(self.last, pending, batch, adapters)
        if saved_layers is not None:
            saved_layers.append(SavedLayer(output.x, None if recompute else attention))
        return output

    def _attention_forward(
        self, index: int, pending: PendingResidual, batch: DeviceBatch, adapters: Tensor
    ) -> tuple[AttentionOutput, SavedAttention]:
        """What the layer's position-wise part reads, and what its attention's backward does."""
        dims, table, lora, w = self.dims, batch.table, adapters[index], self.layers[index]
        # The first layer adds nothing: the embedding leaves nothing pending.
        below = adapters[max(index - 1, 0)]
        x, h, rstd = self.residual.add_and_norm(pending, below, "down_proj", w.norm_attention, table)
        s = self.streams.shrunk(h, lora, table, dims.a(*_QKV), dims.matrix(index, "q_proj"))
        qkv = linear(h, w.w_qkv, w.b_qkv)
        b_qkv = dims.columns["q_proj"][1], dims.columns["k_proj"][1], dims.columns["v_proj"][1]
        self.streams.join()
        turned = qkv, s, lora, b_qkv, *self.rotaries[w.rope], batch.positions, dims.heads, table
        whole = self._whole_norms(w)
        raw = rotary(*turned, self._norms(w)) if whole is None else whole.rotary(*turned)
        attended, lse = self._attend(index, qkv, batch)
        return AttentionOutput(x, attended), SavedAttention(rstd, h, s, qkv, raw, attended, lse)

    def _attend(self, index: int, qkv: Tensor, batch: DeviceBatch) -> tuple[Tensor, Tensor]:
        """(attention's output [T, Hq D], its log-sum-exp) of layer `index`; generation attends to a cache instead."""
        shape = self.dims.shape
        return attention(qkv, batch.sequences, self.dims.heads, shape.scale, self.layers[index].window, shape.cap)

    def abandon(self) -> None:
        """Drop a pass that ended in an error. The device is idle."""
        self.streams.abandon()

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
        self,
        gradient: AttentionOutputGradient,
        batch: DeviceBatch,
        adapters: Tensor,
        grad: Gradient,
        saved_layers: list[SavedLayer],
    ) -> None:
        """gradient: of what the last layer's position-wise part read. Writes the adapters' gradients of all before it."""
        dx = gradient.dx
        for index in range(self.last, -1, -1):
            kept, lora = saved_layers.pop(), adapters[index]
            self.gathers.use(layer_unit(index), BACKWARD)
            attention, position_wise = kept.attention, kept.position_wise
            if attention is None:
                output, attention = self._attention_forward(index, PendingResidual(kept.x), batch, adapters)
                if index < self.last:
                    _, position_wise = self.position_wise.forward(index, output, lora, batch.table)
            products: list[GradientProduct] = []
            if position_wise is not None:  # of every layer but the last
                given = lora, grad.layer(index), batch.table, products, position_wise
                gradient = self.position_wise.backward(index, dx, *given)
            dx = self._attention_backward(index, gradient, batch, lora, products, kept.x, attention)
            self.streams.launch_gradients(products, grad.layer(index), batch.table)
        self.streams.launch_gradients([], grad.layer(0), batch.table)

    def _attention_backward(
        self,
        index: int,
        given: AttentionOutputGradient,
        batch: DeviceBatch,
        lora: Tensor,
        products: list[GradientProduct],
        x: Tensor,
        saved: SavedAttention,
    ) -> Tensor:
        """The gradient of the layer's input x. Appends to `products` what is still to launch."""
        dims, table, w = self.dims, batch.table, self.layers[index]
        matrix = dims.matrix(index, "q_proj")
        incoming = None
        if given.ds is not None:
            o = dims.columns["o_proj"][0], table, dims.matrix(index, "o_proj")
            incoming = AdapterInputGradient(given.ds, lora, *o)
        formed = dims.heads, dims.shape.scale, w.window, incoming, dims.shape.cap
        dqkv = attention_backward(given.dout, saved.qkv, saved.attended, saved.lse, batch.sequences, *formed)
        turned, whole = (dqkv, *self.rotaries[w.rope], batch.positions, dims.heads, saved.raw), self._whole_norms(w)
        rotary_backward(*turned, self._norms(w)) if whole is None else whole.rotary_backward(*turned)
        ds = None
        if saved.s is not None:
            widths, starts = (dims.q_width, dims.kv_width, dims.kv_width), (0, dims.q_width, dims.q_width + dims.kv_width)
            ds = self.streams.shrink(dqkv, lora, table, dims.b(*_QKV), widths, x_starts=starts)
            products.append(GradientProduct(saved.s, dqkv, dims.b(*_QKV), widths, starts))
            products.append(GradientProduct(ds, saved.h, dims.a(*_QKV), (dims.hidden,) * 3, dropout_matrix=matrix))
        if index == 0:
            return given.dx  # nothing below the first layer learns
        dh = linear_backward(dqkv, w.w_qkv)
        self.streams.join()
        read = x, saved.rstd, w.norm_attention
        return self.residual.norm_backward(dh, ds, saved.s, lora, _QKV, *read, given.dx, table, matrix)
