"""Ours, as the trainer runs it, and the frozen base alone: a layer of the fused stack over the arena."""

import torch
from grouped_lora.gradient import Gradient
from torch import Tensor

from benchmarks.rivals.contestant import Contestant, Outcome
from benchmarks.rivals.layer_cell import LAYER, LayerCell
from worker.model.cuda.batches.device_batch import BatchShape, DeviceBatch, fill, tables, unpack
from worker.model.cuda.layers.fused_stack import FusedStack
from worker.model.cuda.layers.saved_activations import PendingResidual
from worker.model.cuda.layers.side_streams import GradientProduct


class OneLayer(FusedStack):
    """A stack of two layers of which the second is computed."""

    def both_ways(self, x: Tensor, dy: Tensor, batch: DeviceBatch, adapters: Tensor, grad: Gradient) -> tuple[Tensor, Tensor]:
        """(output, dX), both [T, D], of x and dy [T, D]. The sum behind `down` is formed by the next norm, as in a model."""
        lora, layer = adapters[LAYER], (grad.layer(LAYER), batch.table)
        self.streams.choose_streams(x.shape[0])
        output, attention = self._attention_forward(LAYER, PendingResidual(x), batch, adapters)
        pending, position_wise = self.position_wise.forward(LAYER, output, lora, batch.table)
        out, _, _ = self.residual.final_norm(pending, lora, batch.table)
        products: list[GradientProduct] = []
        gradient = self.position_wise.backward(LAYER, dy, lora, *layer, products, position_wise)
        dx = self._attention_backward(LAYER, gradient, batch, lora, products, x, attention)
        self.streams.launch_gradients(products, *layer)
        self.streams.launch_gradients([], *layer)
        return out, dx


class OurLayer(Contestant):
    """adapted: with the cell's adapters, else the frozen base alone."""

    note = "the fused layer of the trainer, on its axis of bucketed length"

    def __init__(self, cell: LayerCell, adapted: bool) -> None:
        self._cell, self._adapted = cell, adapted
        stack, spans = cell.fused.stack, cell.spans if adapted else ()
        self._layer = OneLayer(stack.layers, stack.final_norm, stack.dims, stack.rotaries)
        table = tables(cell.flat, spans, (False,) * len(spans), cell.grain)
        shape = BatchShape.of(cell.flat, table, cell.grain)
        self._batch = unpack(shape, torch.from_numpy(fill(shape, cell.flat, table)).to(cell.device))
        self._x, self._dy = (self._padded(part, shape.tokens) for part in (cell.x, cell.dy))
        arena = cell.arena
        self._adapters, self._grad = arena.layered(arena.compute_copy), arena.gradient

    def _padded(self, part: Tensor, tokens: int) -> Tensor:
        return torch.cat([part, part.new_zeros(tokens - part.shape[0], part.shape[1])])

    def run(self) -> None:
        self._out, self._dx = self._layer.both_ways(self._x, self._dy, self._batch, self._adapters, self._grad)

    def outcome(self) -> Outcome:
        size = self._cell.flat.size
        return Outcome(self._out[:size], self._dx[:size], self._cell.gradients() if self._adapted else [])
