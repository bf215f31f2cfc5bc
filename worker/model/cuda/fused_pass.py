"""One pass of a flat batch through the backbone on CUDA: embedding, stack, label tail, and backward into the arena's gradient.

Its three parts can be launched one by one: what goes forward to the tail and back from it depends on the batch's bucket alone,
so it may be captured (pass_graphs.py); the tail depends on the batch's labels. Where a pass is short (`whole`), its last layer
is before the tail, with all tokens: there a layer's time is that of reading its weights, and that of the host who launches it.
Knows device tensors of one batch; knows no jobs, no host data and no optimizer. Nothing here waits for the device.
"""

from dataclasses import dataclass

from grouped_lora.gradient import Gradient
from torch import Tensor

from worker.model.arena_layout import GROUPS, Layout
from worker.model.backbone import Backbone
from worker.model.cuda.batches.device_batch import DeviceBatch
from worker.model.cuda.batches.label_batch import LabelBatch
from worker.model.cuda.label_tail import LabelTail, PassResult, TailGradient, TailInput
from worker.model.cuda.last_layer import LastLayer, SavedLastLayer
from worker.model.cuda.layers.fused_stack import FusedStack
from worker.model.cuda.layers.saved_activations import Hidden, SavedLayer
from worker.model.cuda.layers.stack_dims import StackDims
from worker.model.sharding.weight_shards import EMBEDDING_UNIT, FORWARD


@dataclass
class ForwardDone:
    """What a forward leaves for its backward. layers: what each layer's backward reads. last: of a whole pass. gradient: of
    what the tail read, once it is known. The backward takes them out, so that their memory is free."""

    batch: DeviceBatch
    layers: list[SavedLayer]
    last: SavedLastLayer | None = None
    gradient: TailGradient | None = None


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
        self._embedding_scale = backbone.embedding_scale
        self._last, self.tail = LastLayer(self.stack), LabelTail(self.stack, backbone.head, backbone.logit_cap)

    def train(
        self,
        batch: DeviceBatch,
        labels: LabelBatch,
        adapters: Tensor,
        grad: Gradient,
        recompute: bool = False,
        whole: bool = False,
    ) -> PassResult:
        """Forward and backward. adapters: the arena's compute copy, a view [layers, rows, C]; grad: all layers'."""
        given, done = self.forward(batch, adapters, recompute, whole)
        result, done.gradient = self.tail.train(given, labels, adapters, grad)
        del given
        self.backward(done, adapters, grad)
        return result

    def evaluate(self, batch: DeviceBatch, labels: LabelBatch, adapters: Tensor, whole: bool = False) -> PassResult:
        """Forward alone."""
        return self.tail.evaluate(self.tail_input(batch, adapters, whole), labels, adapters)

    def tail_input(self, batch: DeviceBatch, adapters: Tensor, whole: bool) -> TailInput:
        """What the tail reads; nothing is kept for a backward."""
        output = self.stack.forward(self.embed(batch), batch, adapters, None)
        return Hidden(self._last.forward(output, adapters, batch.table)[0]) if whole else output

    def forward(self, batch: DeviceBatch, adapters: Tensor, recompute: bool, whole: bool) -> tuple[TailInput, ForwardDone]:
        """What the tail reads, and what `backward` does; with `recompute` each layer's input alone."""
        layers: list[SavedLayer] = []
        output = self.stack.forward(self.embed(batch), batch, adapters, layers, recompute)
        if not whole:
            return output, ForwardDone(batch, layers)
        h, saved = self._last.forward(output, adapters, batch.table)
        return Hidden(h), ForwardDone(batch, layers, saved)

    def backward(self, done: ForwardDone, adapters: Tensor, grad: Gradient) -> None:
        """Write the adapters' gradients of what lies before the tail. done: with the gradient of what that read."""
        gradient, done.gradient = done.gradient, None
        assert gradient is not None, "the tail comes before the backward, of which a forward has one"
        self.stack.streams.choose_streams(done.batch.tokens.shape[0])
        if isinstance(gradient, Hidden):
            assert done.last is not None, "a whole pass went forward"
            gradient = self._last.backward(gradient.h, adapters, grad, done.batch.table, done.last)
        self.stack.backward(gradient, done.batch, adapters, grad, done.layers)

    def embed(self, batch: DeviceBatch) -> Tensor:
        """The first layer's input, [T, D]."""
        self._gathers.use(EMBEDDING_UNIT, FORWARD)
        x = self.embedding.index_select(0, batch.tokens)
        return x if self._embedding_scale is None else x.mul_(self._embedding_scale)
