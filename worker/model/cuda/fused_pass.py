"""One pass of a flat batch through the backbone on CUDA: embedding, stack, head, and backward into the arena's gradient.

Knows device tensors of one batch; knows no jobs, no host data and no optimizer. Nothing here waits for the device.
"""

from dataclasses import dataclass

from grouped_lora.gradient import Gradient
from torch import Tensor

from worker.model.arena_layout import GROUPS, Layout
from worker.model.backbone import Backbone
from worker.model.cuda.device_batch import DeviceBatch
from worker.model.cuda.fused_head import Labels, head_loss
from worker.model.cuda.fused_stack import FusedStack, SavedLayer, StackDims
from worker.model.sharding.weight_shards import EMBEDDING_UNIT, FORWARD, HEAD_UNIT


@dataclass(frozen=True)
class PassResult:
    """sums [segments] fp32: log-probabilities of each segment's labels; hits [segments] fp32: how many of these are their
    logits' argmax."""

    sums: Tensor
    hits: Tensor


def layer_columns(layout: Layout) -> dict[str, tuple[int, int]]:
    """Where A and B of each matrix start within one layer's part of an arena row. Raises ValueError if layers differ."""
    per_layer: list[dict[str, tuple[int, int]]] = []
    for groups in layout.layers:
        base = groups["qkv"].a
        per_layer.append(
            {
                module: (groups[name].a + place * groups[name].pitch - base, groups[name].parts[place].b - base)
                for name, modules in GROUPS.items()
                for place, module in enumerate(modules)
            }
        )
    if any(columns != per_layer[0] for columns in per_layer):
        raise ValueError("the layers of this model have different shapes; the fused stack needs them equal")
    return per_layer[0]


class FusedPass:
    def __init__(self, backbone: Backbone, layout: Layout, positions: int) -> None:
        """`positions`: the most positions of a sequence."""
        first = backbone.layers[0]
        dims = StackDims(backbone.shape, first.w_qkv.shape[1], first.w_down.shape[1], layer_columns(layout))
        rotaries = [rotary.table(positions) for rotary in backbone.rotaries]
        self.stack = FusedStack(backbone.layers, backbone.norm, dims, rotaries, backbone.gathers)
        self.embedding, self.head, self._gathers = backbone.embedding, backbone.head, backbone.gathers
        self._embedding_scale, self._cap = backbone.embedding_scale, backbone.logit_cap

    def train(
        self, batch: DeviceBatch, labels: Labels, adapters: Tensor, grad: Gradient, recompute: bool = False
    ) -> PassResult:
        """Forward and backward. adapters: the arena's compute copy, a view [layers, rows, C]; grad: all layers'."""
        saved_layers: list[SavedLayer] = []
        x, h, rstd = self.stack.forward(self.embed(batch), batch, adapters, saved_layers, recompute)
        self._gathers.use(HEAD_UNIT, FORWARD)
        sums, hits, dh = head_loss(h, self.head, labels, True, self._cap)
        del h
        assert dh is not None
        dx = self.stack.final_backward(dh, x, rstd, batch)
        del dh, x
        self.stack.backward(dx, batch, adapters, grad, saved_layers)
        return PassResult(sums, hits)

    def evaluate(self, batch: DeviceBatch, labels: Labels, adapters: Tensor) -> PassResult:
        """Forward alone."""
        _, h, _ = self.stack.forward(self.embed(batch), batch, adapters, None)
        self._gathers.use(HEAD_UNIT, FORWARD)
        sums, hits, _ = head_loss(h, self.head, labels, False, self._cap)
        return PassResult(sums, hits)

    def embed(self, batch: DeviceBatch) -> Tensor:
        """The first layer's input, [T, D]."""
        self._gathers.use(EMBEDDING_UNIT, FORWARD)
        x = self.embedding.index_select(0, batch.tokens)
        return x if self._embedding_scale is None else x.mul_(self._embedding_scale)
