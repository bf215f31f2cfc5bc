"""One pass of a flat batch through the backbone on CUDA: embedding, stack, label tail, and backward into the arena's gradient.

Its three parts can be launched one by one: what goes forward to the last attention and back from it depends on the batch's
bucket alone, so it may be captured (pass_graphs.py); the tail between them depends on its labels. Knows device tensors of one
batch; knows no jobs, no host data and no optimizer. Nothing here waits for the device.
"""

from dataclasses import dataclass

from grouped_lora.gradient import Gradient
from torch import Tensor

from worker.model.arena_layout import GROUPS, Layout
from worker.model.backbone import Backbone
from worker.model.cuda.device_batch import DeviceBatch
from worker.model.cuda.fused_stack import FusedStack
from worker.model.cuda.label_batch import LabelBatch
from worker.model.cuda.label_tail import LabelTail, PassResult
from worker.model.cuda.saved_activations import AttentionOutput, AttentionOutputGradient, SavedLayer
from worker.model.cuda.stack_dims import StackDims
from worker.model.sharding.weight_shards import EMBEDDING_UNIT, FORWARD


@dataclass
class ForwardDone:
    """What a forward leaves for its backward. layers: what each layer's backward reads. gradient: of the last attention's
    output, once it is known. The backward takes both out, so that their memory is free."""

    batch: DeviceBatch
    layers: list[SavedLayer]
    gradient: AttentionOutputGradient | None = None


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
        self.tail = LabelTail(self.stack, backbone.head, backbone.logit_cap)

    def train(
        self, batch: DeviceBatch, labels: LabelBatch, adapters: Tensor, grad: Gradient, recompute: bool = False
    ) -> PassResult:
        """Forward and backward. adapters: the arena's compute copy, a view [layers, rows, C]; grad: all layers'."""
        output, done = self.forward(batch, adapters, recompute)
        result, done.gradient = self.tail.train(output, labels, adapters, grad)
        del output
        self.backward(done, adapters, grad)
        return result

    def evaluate(self, batch: DeviceBatch, labels: LabelBatch, adapters: Tensor) -> PassResult:
        """Forward alone."""
        return self.tail.evaluate(self.output(batch, adapters), labels, adapters)

    def output(self, batch: DeviceBatch, adapters: Tensor) -> AttentionOutput:
        """What the tail reads; nothing is kept for a backward."""
        return self.stack.forward(self.embed(batch), batch, adapters, None)

    def forward(self, batch: DeviceBatch, adapters: Tensor, recompute: bool) -> tuple[AttentionOutput, ForwardDone]:
        """What the tail reads, and what `backward` does; with `recompute` each layer's input alone."""
        layers: list[SavedLayer] = []
        output = self.stack.forward(self.embed(batch), batch, adapters, layers, recompute)
        return output, ForwardDone(batch, layers)

    def backward(self, done: ForwardDone, adapters: Tensor, grad: Gradient) -> None:
        """Write the adapters' gradients of what lies before the tail. done: with the gradient of what that read."""
        assert done.gradient is not None, "the tail comes before the backward, of which a forward has one"
        gradient, done.gradient = done.gradient, None
        self.stack.backward(gradient, done.batch, adapters, grad, done.layers)

    def embed(self, batch: DeviceBatch) -> Tensor:
        """The first layer's input, [T, D]."""
        self._gathers.use(EMBEDDING_UNIT, FORWARD)
        x = self.embedding.index_select(0, batch.tokens)
        return x if self._embedding_scale is None else x.mul_(self._embedding_scale)
