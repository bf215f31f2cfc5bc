"""Unsloth's layer: its autograd functions of q, k and v, of o, and of the whole MLP, one adapter after another.

Each adapter's rows are packed end to end on an axis of their own.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.rivals import module_loading
from benchmarks.rivals.contestant import Contestant, Outcome
from benchmarks.rivals.layer_cell import Factors, LayerCell
from benchmarks.rivals.shared_parts import Axis, both_ways, by_adapter

Operand = tuple[Tensor, None, Tensor, Tensor, float]  # a matrix, not quantised, and its adapter: A, B, scale


class _OneAdapter:
    """Its linear maps, with one adapter."""

    def __init__(self, cell: LayerCell, directory: Path, place: int) -> None:
        self._functions, self._swiglu = module_loading.unsloth(directory)
        self._axis, span = Axis(cell, cell.axis(cell.row_lengths[place])), cell.spans[place]
        self._x, self._dy = cell.x[span.start : span.stop].clone().requires_grad_(), cell.dy[span.start : span.stop]
        self._leaves: list[Tensor] = []
        self._operands: dict[str, Operand] = {}
        for module, matrix in cell.matrices().items():
            a, b = (part.clone().requires_grad_() for part in cell.factors[place][module])
            self._leaves += [a, b]
            self._operands[module] = (matrix, None, a, b, span.scale)

    def _of(self, *modules: str) -> list[Tensor | float | None]:
        return [part for module in modules for part in self._operands[module]]

    def qkv(self, h: Tensor) -> Sequence[Tensor]:
        found: Sequence[Tensor] = self._functions.LoRA_QKV.apply(h[None], *self._of("q_proj", "k_proj", "v_proj"), True)
        return [part.squeeze(0) for part in found]

    def o(self, attended: Tensor) -> Tensor:
        found: Tensor = self._functions.LoRA_W.apply(attended[None], *self._of("o_proj"))
        return found.squeeze(0)

    def mlp(self, h: Tensor, axis: Axis) -> Tensor:
        found: Tensor = self._functions.LoRA_MLP.apply(
            h[None], *self._of("gate_proj", "up_proj", "down_proj"), self._swiglu.swiglu_fg_kernel,
            self._swiglu.swiglu_DWf_DW_dfg_kernel, True,
        )  # fmt: skip
        return found.squeeze(0)

    def run(self) -> None:
        self.out, self.dx, self._gradients = both_ways(self._x, self._dy, self, self._axis, self._leaves)

    def gradients(self) -> Factors:
        return by_adapter(self._gradients)[0]


class UnslothLayer(Contestant):
    note = "as shipped, one adapter after another, adapters in the base's precision"

    def __init__(self, cell: LayerCell, directory: Path) -> None:
        self._adapters = [_OneAdapter(cell, directory, place) for place in range(len(cell.spans))]

    def run(self) -> None:
        for adapter in self._adapters:
            adapter.run()

    def outcome(self) -> Outcome:
        out, dx = (torch.cat(parts) for parts in zip(*((one.out, one.dx) for one in self._adapters), strict=True))
        return Outcome(out, dx, [adapter.gradients() for adapter in self._adapters])
