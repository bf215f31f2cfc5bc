"""One pass of a flat batch through the backbone on CUDA: embedding, stack, head, and backward into the arena's gradient.

Its three parts can be launched one by one: forward and backward depend on the batch's bucket alone, so they may be captured
(pass_graphs.py), the head and the loss on its labels. Knows device tensors of one batch; knows no jobs, no host data and no
optimizer. Nothing here waits for the device.
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


@dataclass
class ForwardDone:
    """What a forward leaves for its backward. x, rstd: of the final norm. layers: what each layer's backward reads. dh [T, D]:
    the gradient of the final hidden states, once it is known. The backward takes them out, so that their memory is free."""

    batch: DeviceBatch
    x: Tensor | None
    rstd: Tensor
    layers: list[SavedLayer]
    dh: Tensor | None = None


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
        h, done = self.forward(batch, adapters, recompute)
        result, done.dh = self.loss(h, labels, with_gradient=True)
        del h
        self.backward(done, adapters, grad)
        return result

    def evaluate(self, batch: DeviceBatch, labels: Labels, adapters: Tensor) -> PassResult:
        """Forward alone."""
        return self.loss(self.hidden(batch, adapters), labels, with_gradient=False)[0]

    def hidden(self, batch: DeviceBatch, adapters: Tensor) -> Tensor:
        """The final hidden states [T, D]; nothing is kept for a backward."""
        return self.stack.forward(self.embed(batch), batch, adapters, None)[1]

    def forward(self, batch: DeviceBatch, adapters: Tensor, recompute: bool) -> tuple[Tensor, ForwardDone]:
        """The final hidden states [T, D], and what `backward` reads; with `recompute` each layer's input alone."""
        layers: list[SavedLayer] = []
        x, h, rstd = self.stack.forward(self.embed(batch), batch, adapters, layers, recompute)
        return h, ForwardDone(batch, x, rstd, layers)

    def loss(
        self, h: Tensor, labels: Labels, with_gradient: bool, out: Tensor | None = None
    ) -> tuple[PassResult, Tensor | None]:
        """The pass's result, and the gradient [T, D] of h. out: as of head_loss."""
        self._gathers.use(HEAD_UNIT, FORWARD)
        sums, hits, dh = head_loss(h, self.head, labels, with_gradient, self._cap, out)
        return PassResult(sums, hits), dh

    def backward(self, done: ForwardDone, adapters: Tensor, grad: Gradient) -> None:
        """Write the adapters' gradients. done: with dh."""
        assert done.dh is not None, "the loss comes before the backward"
        assert done.x is not None, "a forward has one backward"
        dx = self.stack.final_backward(done.dh, done.x, done.rstd, done.batch)
        done.dh = done.x = None
        self.stack.backward(dx, done.batch, adapters, grad, done.layers)

    def embed(self, batch: DeviceBatch) -> Tensor:
        """The first layer's input, [T, D]."""
        self._gathers.use(EMBEDDING_UNIT, FORWARD)
        x = self.embedding.index_select(0, batch.tokens)
        return x if self._embedding_scale is None else x.mul_(self._embedding_scale)
