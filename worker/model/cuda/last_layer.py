"""The last layer behind its attention, and the final norm, forward and backward, on whichever tokens it is given: those that
labels are predicted from (label_tail.py), or all of a short pass (fused_pass.py). Knows no labels and no losses.
"""

from dataclasses import dataclass

from grouped_lora.gradient import Gradient
from grouped_lora.work_table import WorkTable
from torch import Tensor

from worker.model.cuda.layers.fused_stack import FusedStack
from worker.model.cuda.layers.saved_activations import AttentionOutput, AttentionOutputGradient, SavedPositionWise
from worker.model.cuda.layers.side_streams import GradientProduct
from worker.model.sharding.weight_shards import BACKWARD, layer_unit


@dataclass
class SavedLastLayer:
    """What its backward reads; x, rstd: of the final norm. The backward takes it out, so that its memory is free."""

    position_wise: SavedPositionWise | None
    x: Tensor | None
    rstd: Tensor


class LastLayer:
    def __init__(self, stack: FusedStack) -> None:
        self._stack = stack

    def forward(self, output: AttentionOutput, adapters: Tensor, table: WorkTable) -> tuple[Tensor, SavedLastLayer]:
        """The final hidden states [T, D] of the tokens given, and what `backward` reads. adapters: all layers'."""
        stack, lora = self._stack, adapters[-1]
        pending, saved = stack.position_wise.forward(stack.last, output, lora, table)
        x, h, rstd = stack.residual.final_norm(pending, lora, table)
        return h, SavedLastLayer(saved, x, rstd)

    def backward(
        self, dh: Tensor, adapters: Tensor, grad: Gradient, table: WorkTable, saved: SavedLastLayer
    ) -> AttentionOutputGradient:
        """From dh [T, D]. Writes the adapters' gradients of o, gate, up and down, some of them beside what is launched next, up
        to the next `launch_gradients` of the stack's streams."""
        assert saved.x is not None, "a forward has one backward"
        assert saved.position_wise is not None, "a forward has one backward"
        stack, products = self._stack, list[GradientProduct]()
        stack.gathers.use(layer_unit(stack.last), BACKWARD)
        dx = stack.residual.final_backward(dh, saved.x, saved.rstd, table)
        layer = grad.layer(stack.last), table
        gradient = stack.position_wise.backward(stack.last, dx, adapters[-1], *layer, products, saved.position_wise)
        saved.x = saved.position_wise = None
        stack.streams.launch_gradients(products, *layer)
        return gradient
