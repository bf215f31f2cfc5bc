"""A pass behind its last attention: the last layer's position-wise part, the final norm, the head and the loss, forward and
backward, over the tokens that labels are predicted from. What the other tokens would give there is read by nobody, and its
gradient is zero; of rows whose prompts have no labels that is a part of a layer's work as large as the prompts' part of the
tokens. Knows device tensors of one batch; knows no layers below and no captured graphs. Legend: T tokens of the pass, L labels.
"""

from dataclasses import dataclass
from functools import partial

from grouped_lora.gradient import Gradient
from torch import Tensor

from worker.model.cuda.fused_head import head_loss
from worker.model.cuda.fused_stack import FusedStack
from worker.model.cuda.label_batch import LabelBatch
from worker.model.cuda.saved_activations import AttentionOutput, AttentionOutputGradient
from worker.model.cuda.side_streams import GradientProduct
from worker.model.sharding.weight_shards import BACKWARD, FORWARD, HEAD_UNIT, layer_unit


@dataclass(frozen=True)
class PassResult:
    """sums [segments] fp32: log-probabilities of each segment's labels; hits [segments] fp32: how many of these are their
    logits' argmax."""

    sums: Tensor
    hits: Tensor


class LabelTail:
    """cap: the logits' soft cap, if they have one."""

    def __init__(self, stack: FusedStack, head: Tensor, cap: float | None) -> None:
        self._stack, self._head, self._cap = stack, head, cap

    def train(
        self,
        output: AttentionOutput,
        batch: LabelBatch,
        adapters: Tensor,
        grad: Gradient,
        out: AttentionOutputGradient | None = None,
    ) -> tuple[PassResult, AttentionOutputGradient]:
        """The pass's result, and the gradient of the last attention's `output` [T, ...]. Writes the adapters' gradients of the
        last layer's o, gate, up and down. out, of T + 1 rows: where the former is written, if not to memory of its own."""
        stack, index, table = self._stack, self._stack.last, batch.table
        stack.streams.choose_streams(batch.indices.shape[0])
        picked = AttentionOutput(batch.of(output.x), batch.of(output.attended))
        pending, saved = stack.position_wise.forward(index, picked, adapters[index], table)
        x, h, rstd = stack.residual.final_norm(pending, adapters[index], table)
        del pending
        result, dh = self._loss(h, batch, with_gradient=True)
        assert dh is not None, "it was wanted"
        del h
        stack.gathers.use(layer_unit(index), BACKWARD)
        dx = stack.residual.final_backward(dh, x, rstd, table)
        del dh, x, rstd
        products: list[GradientProduct] = []
        layer = adapters[index], grad.layer(index), table
        gradient = stack.position_wise.backward(index, dx, *layer, products, saved)
        stack.streams.launch_gradients(products, *layer[1:])
        spread = partial(batch.spread, tokens=output.x.shape[0])
        dx = spread(gradient.dx, out=out.dx if out is not None else None)
        dout = spread(gradient.dout, out=out.dout if out is not None else None)
        ds = spread(gradient.ds, out=out.ds if out is not None else None) if gradient.ds is not None else None
        stack.streams.launch_gradients([], *layer[1:])  # a replayed backward knows of no launch before it
        return result, AttentionOutputGradient(dx, dout, ds)

    def evaluate(self, output: AttentionOutput, batch: LabelBatch, adapters: Tensor) -> PassResult:
        """Forward alone."""
        stack = self._stack
        stack.streams.choose_streams(batch.indices.shape[0])
        picked = AttentionOutput(batch.of(output.x), batch.of(output.attended))
        pending, _ = stack.position_wise.forward(stack.last, picked, adapters[-1], batch.table)
        _, h, _ = stack.residual.final_norm(pending, adapters[-1], batch.table)
        return self._loss(h, batch, with_gradient=False)[0]

    def _loss(self, h: Tensor, batch: LabelBatch, with_gradient: bool) -> tuple[PassResult, Tensor | None]:
        self._stack.gathers.use(HEAD_UNIT, FORWARD)
        sums, hits, dh = head_loss(h, self._head, batch.labels, with_gradient, self._cap)
        return PassResult(sums, hits), dh
