"""A pass behind its last attention: the last layer's position-wise part, the final norm, the head and the loss, forward and
backward, over the tokens that labels are predicted from. What the other tokens would give there is read by nobody, and its
gradient is zero: where a fraction of the tokens has no labels, the last layer does as much less. Of a short pass, whose last
layer has all tokens, the head and the loss alone. Knows device tensors of one batch; knows no layers below and no captured
graphs. Legend: T tokens of the pass, L labels.
"""

from dataclasses import dataclass
from functools import partial

from grouped_lora.gradient import Gradient
from torch import Tensor

from worker.model.cuda.batches.label_batch import LabelBatch
from worker.model.cuda.fused_head import head_loss
from worker.model.cuda.last_layer import LastLayer
from worker.model.cuda.layers.fused_stack import FusedStack
from worker.model.cuda.layers.saved_activations import AttentionOutput, AttentionOutputGradient, Hidden
from worker.model.sharding.weight_shards import FORWARD, HEAD_UNIT

TailInput = AttentionOutput | Hidden
TailGradient = AttentionOutputGradient | Hidden


@dataclass(frozen=True)
class PassResult:
    """sums [segments] fp32: log-probabilities of each segment's labels; hits [segments] fp32: how many of these are their
    logits' argmax."""

    sums: Tensor
    hits: Tensor


class LabelTail:
    """cap: the logits' soft cap, if they have one."""

    def __init__(self, stack: FusedStack, head: Tensor, cap: float | None) -> None:
        self._stack, self._last, self._head, self._cap = stack, LastLayer(stack), head, cap

    def train(
        self, given: TailInput, batch: LabelBatch, adapters: Tensor, grad: Gradient, out: TailGradient | None = None
    ) -> tuple[PassResult, TailGradient]:
        """The pass's result, and the gradient of what is `given`, of T tokens. Writes the adapters' gradients of what it runs
        of the last layer. out, of T + 1 rows: where the former is written, if not to memory of its own."""
        spread = partial(batch.spread, tokens=given[0].shape[0])
        if isinstance(given, Hidden):
            assert out is None or isinstance(out, Hidden), "of its own kind"
            result, dh = self._loss(batch.of(given.h), batch, with_gradient=True)
            return result, Hidden(spread(dh, out=out.h if out is not None else None))
        assert out is None or isinstance(out, AttentionOutputGradient), "of its own kind"
        streams = self._stack.streams
        streams.choose_streams(batch.indices.shape[0])
        picked = AttentionOutput(batch.of(given.x), batch.of(given.attended))
        h, saved = self._last.forward(picked, adapters, batch.table)
        result, dh = self._loss(h, batch, with_gradient=True)
        del h
        gradient = self._last.backward(dh, adapters, grad, batch.table, saved)
        dx = spread(gradient.dx, out=out.dx if out is not None else None)
        dout = spread(gradient.dout, out=out.dout if out is not None else None)
        ds = spread(gradient.ds, out=out.ds if out is not None else None) if gradient.ds is not None else None
        streams.launch_gradients([], grad, batch.table)  # a replayed backward knows of no launch before it
        return result, AttentionOutputGradient(dx, dout, ds)

    def evaluate(self, given: TailInput, batch: LabelBatch, adapters: Tensor) -> PassResult:
        """Forward alone."""
        if isinstance(given, Hidden):
            return self._loss(batch.of(given.h), batch, with_gradient=False)[0]
        self._stack.streams.choose_streams(batch.indices.shape[0])
        picked = AttentionOutput(batch.of(given.x), batch.of(given.attended))
        h, _ = self._last.forward(picked, adapters, batch.table)
        return self._loss(h, batch, with_gradient=False)[0]

    def _loss(self, h: Tensor, batch: LabelBatch, with_gradient: bool) -> tuple[PassResult, Tensor]:
        """The result, and the gradient of h [L, D], or h where none is wanted."""
        self._stack.gathers.use(HEAD_UNIT, FORWARD)
        sums, hits, dh = head_loss(h, self._head, batch.labels, with_gradient, self._cap)
        return PassResult(sums, hits), h if dh is None else dh
