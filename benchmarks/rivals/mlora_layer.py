"""mLoRA's layer: its linear map over one batch of all adapters' rows, each row padded to the longest, as shipped.

Its adapters are in float32, and so is what they compute; its dropout must not be 0, so it is one that drops nothing. Its own
recomputation of layers is left off, and its masked attention and norms are replaced by ours, which skip the padding's scores.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.rivals import module_loading
from benchmarks.rivals.contestant import Contestant, Outcome
from benchmarks.rivals.layer_cell import MODULES, LayerCell
from benchmarks.rivals.shared_parts import Axis, SeparateLinears, both_ways, by_adapter

DROPOUT = 1e-12  # below the resolution of what it is compared with


class MLoraLayer(SeparateLinears, Contestant):
    note = (
        "as shipped: rows padded to the longest, adapters and their products in float32; without its recomputation, attention "
        "and norms"
    )

    def __init__(self, cell: LayerCell, directory: Path) -> None:
        self._cell = cell
        self._linear, self._lora, self._args = module_loading.mlora(directory)
        lengths = [length for own in cell.row_lengths for length in own]
        longest = max(lengths)
        self._size = len(lengths), longest
        parts = [part for length in lengths for part in (length, longest - length) if part]
        self._axis = Axis(cell, cell.axis(parts))
        self._own = torch.cat([torch.arange(n) + row * longest for row, n in enumerate(lengths)]).to(cell.device)
        self._x, self._dy = (
            torch.zeros(len(lengths) * longest, cell.x.shape[1], dtype=cell.dtype, device=cell.device) for _ in "xy"
        )
        self._x[self._own], self._dy[self._own] = cell.x, cell.dy
        self._x.requires_grad_()
        self._maps = {module: self._map(matrix, module) for module, matrix in cell.matrices().items()}
        held = [[self._maps[module].adapters_[str(place)] for module in MODULES] for place in range(len(cell.spans))]
        self._leaves = [leaf for own in held for adapter in own for leaf in (adapter.lora_a_, adapter.lora_b_)]
        self._data = self._batch()

    def _map(self, matrix: Tensor, module: str) -> Any:
        """Its linear map of a frozen matrix, with every adapter of the cell."""
        out_features, in_features = matrix.shape
        plain = torch.nn.Linear(in_features, out_features, bias=False, device="meta")
        plain.weight = torch.nn.Parameter(matrix, requires_grad=False)
        made = self._linear.Linear(plain)
        for place, (span, own) in enumerate(zip(self._cell.spans, self._cell.factors, strict=True)):
            adapter = self._lora.LoRA(str(place), in_features, out_features, span.rank, span.scale * span.rank, DROPOUT)
            adapter.lora_a_, adapter.lora_b_ = (part.float().clone().requires_grad_() for part in own[module])
            made.load_adapter(adapter)
        return made

    def _batch(self) -> Any:
        """Its description of which rows are whose."""
        at, configs = 0, []
        for place, own in enumerate(self._cell.row_lengths):
            configs.append(self._args.ModelDataConfig(str(place), "lora", at, at + len(own)))
            at += len(own)
        return self._args.ModelData([], [], configs, False, 0, [])

    def linear(self, h: Tensor, module: str) -> Tensor:
        y: Tensor = self._maps[module].forward(h.unflatten(0, self._size), self._data)
        return y.flatten(0, 1)

    def run(self) -> None:
        self._out, self._dx, self._gradients = both_ways(self._x, self._dy, self, self._axis, self._leaves)

    def outcome(self) -> Outcome:
        return Outcome(self._out[self._own], self._dx[self._own], by_adapter(self._gradients))
