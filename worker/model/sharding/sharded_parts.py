"""The parts of a base as it is loaded. Of a sharded one this rank's bytes alone are read, into its shards, and its weights are
views of gather buffers afterwards. Knows a layer's weights, and no files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from grouped_lora.base.frozen_product import Frozen
from torch import Tensor

from contract.task_spec import Precision
from worker.model.base_weight_reader import Weights
from worker.model.plain.decoder_block import BlockWeights
from worker.model.sharding.frozen_tensors import over, stored, stored_matrices, tensors_of, unfilled
from worker.model.sharding.part_reader import UnreadMatrix, read_part
from worker.model.sharding.weight_shards import ALL_RESIDENT, Gathers, Sharding, WeightShards, layer_unit

_SHARDED = ("w_qkv", "w_o", "w_gate_up", "w_down")  # norms and biases stay: they are small, and autograd keeps them


class PartShards:
    """Parts are asked for in the order in which a forward pass reads them (`end`, `linear_maps`). Of a sharded part comes back
    what has shapes alone; after `allocate`, `read_end` and `read_layer` turn that into views. precision: of linear maps.
    sharding None: all parts stay whole."""

    def __init__(self, sharding: Sharding | None, weights: Weights, precision: Precision) -> None:
        self._sharding, self._weights, self._precision = sharding, weights, precision
        self._shards = WeightShards(sharding.rank, sharding.world, weights.device) if sharding is not None else None

    @property
    def gathers(self) -> Gathers:
        return self._shards or ALL_RESIDENT

    def end(self, unit: str, name: str) -> Tensor:
        """The embedding or the head, which stays as it is in any precision."""
        if self._shards is None or self._sharding is None or not self._sharding.ends:
            return self._weights[name]
        matrix = torch.empty(self._weights.shape(name), dtype=self._weights.dtype(name), device="meta")
        self._add(unit, [matrix], [[name]], "bf16")
        return matrix

    def linear_maps(self, index: int, names: Mapping[str, Sequence[str]]) -> dict[str, Frozen]:
        """A layer's linear maps. names: of the matrices that are stacked in each."""
        weights = self._weights
        if not self._shards_layer(index):
            return {key: stored([weights[name] for name in some], self._precision) for key, some in names.items()}
        maps = {
            key: unfilled([weights.shape(name) for name in some], weights.dtype(some[0]), self._precision, weights.device)
            for key, some in names.items()
        }
        self._add(layer_unit(index), [maps[key] for key in _SHARDED], [names[key] for key in _SHARDED], self._precision)
        return maps

    def allocate(self) -> None:
        if self._shards is not None:
            self._shards.allocate()

    def read_end(self, unit: str, matrix: Tensor) -> Tensor:
        return self._shards.views(unit)[0] if self._shards is not None and matrix.is_meta else matrix

    def read_layer(self, index: int, block: BlockWeights) -> BlockWeights:
        if self._shards is None or not self._shards_layer(index):
            return block
        views = iter(self._shards.views(layer_unit(index)))
        changed: dict[str, Any] = {key: over(getattr(block, key), views) for key in _SHARDED}
        return replace(block, **changed)

    def _shards_layer(self, index: int) -> bool:
        return self._sharding is not None and index in self._sharding.layers

    def _add(self, unit: str, maps: Sequence[Frozen], names: Sequence[Sequence[str]], precision: Precision) -> None:
        """Read this rank's part of a unit. names: of the matrices that are stacked in each of its maps."""
        assert self._shards is not None, "only a sharded base has units"
        tensors, matrices = list[Tensor](), list[UnreadMatrix]()
        for weight, some in zip(maps, names, strict=True):
            places = stored_matrices(weight, [self._weights.shape(name) for name in some])
            matrices += [
                UnreadMatrix(place, len(tensors), partial(self._weights.rows, name))
                for place, name in zip(places, some, strict=True)
            ]
            tensors += tensors_of(weight)
        self._shards.add(unit, tensors, partial(read_part, matrices=matrices, precision=precision))
