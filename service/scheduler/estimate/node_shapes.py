"""Nodes by what durations depend on, so that those that are alike are estimated once. Knows no tasks."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from contract.compatibility.capabilities import SHARDED_BASES
from service.fleet.base_models.gpu_fit import least_gpus, memory_of
from service.fleet.models import Node

Each = TypeVar("Each")


class Shape(NamedTuple):
    """What durations depend on in a node: device type, number of devices, the bytes of the smallest, and whether its worker
    shards bases."""

    kind: str
    gpus: int
    memory: int
    shards: bool = False

    def gpus_for(self, weight_bytes: int, shared: bool) -> int | None:
        """The smallest power of two of its GPUs that hold these weights; shared: shards of them, where copies do not fit."""
        return least_gpus(weight_bytes, self.memory, self.gpus, self.shards and shared)


def shape_of(node: Node) -> Shape:
    return Shape(node.device_type, len(node.devices), memory_of(node), SHARDED_BASES in (node.capabilities or ()))


class Shapes:
    """The nodes that tasks may run on, by shape."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._of = tuple(map(shape_of, nodes))
        self.distinct = tuple(dict.fromkeys(self._of))

    def each(self, values: Mapping[Shape, Each]) -> tuple[Each, ...]:
        """The value of each node's shape, in node order."""
        if len(self.distinct) == 1:
            return (values[self.distinct[0]],) * len(self._of)
        return tuple(values[shape] for shape in self._of)
