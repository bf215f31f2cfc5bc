"""The parts of a base as it is loaded: what a rank shards leaves its bytes in the rank's shards, and is views of gather buffers
afterwards. Knows a layer's weights, and no files."""

from dataclasses import replace
from typing import Any

import torch
from grouped_lora.base.frozen_product import Frozen
from torch import Tensor

from worker.model.plain.decoder_block import BlockWeights
from worker.model.sharding.frozen_tensors import over, tensors_of
from worker.model.sharding.weight_shards import ALL_RESIDENT, Gathers, Sharding, WeightShards, layer_unit

_SHARDED = ("w_qkv", "w_o", "w_gate_up", "w_down")  # norms and biases stay: they are small, and autograd keeps them


class PartShards:
    """Parts are given in the order in which a forward pass reads them (`end`, `layer`). Of a sharded part comes back what has
    shapes alone; after `allocate`, `read_end` and `read_layer` turn that into views. sharding None: all parts stay whole."""

    def __init__(self, sharding: Sharding | None, device: torch.device) -> None:
        self._sharding = sharding
        self._shards = WeightShards(sharding.rank, sharding.world, device) if sharding is not None else None

    @property
    def gathers(self) -> Gathers:
        return self._shards or ALL_RESIDENT

    def end(self, unit: str, matrix: Tensor) -> Tensor:
        """The embedding or the head."""
        if self._shards is None or self._sharding is None or not self._sharding.ends:
            return matrix
        self._shards.add(unit, [matrix])
        return matrix.to("meta")

    def layer(self, index: int, block: BlockWeights) -> BlockWeights:
        if self._shards is None or self._sharding is None or index not in self._sharding.layers:
            return block
        self._shards.add(layer_unit(index), [tensor for weight in _matrices(block).values() for tensor in tensors_of(weight)])
        return _stored_in(block, [tensor.to("meta") for weight in _matrices(block).values() for tensor in tensors_of(weight)])

    def allocate(self) -> None:
        if self._shards is not None:
            self._shards.allocate()

    def read_end(self, unit: str, matrix: Tensor) -> Tensor:
        return self._shards.views(unit)[0] if self._shards is not None and matrix.is_meta else matrix

    def read_layer(self, index: int, block: BlockWeights) -> BlockWeights:
        if self._shards is None or self._sharding is None or index not in self._sharding.layers:
            return block
        return _stored_in(block, self._shards.views(layer_unit(index)))


def _matrices(block: BlockWeights) -> dict[str, Frozen]:
    return {name: getattr(block, name) for name in _SHARDED}


def _stored_in(block: BlockWeights, tensors: list[Tensor]) -> BlockWeights:
    """The same layer, its linear maps stored in these tensors."""
    left = iter(tensors)
    changed: dict[str, Any] = {name: over(weight, left) for name, weight in _matrices(block).items()}
    return replace(block, **changed)
