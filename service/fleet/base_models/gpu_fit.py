"""Which GPUs of the fleet hold a base's weights, and in which precisions: the planner's own rule, asked before any task."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.compatibility.capabilities import SHARDED_BASES
from contract.task_spec import Precision
from service.fleet.models import Node

# Lower bound per parameter: embeddings, norms and the head stay in bf16.
BYTES_PER_WEIGHT: Mapping[Precision, float] = {
    "bf16": 2,
    "nf4": 1 / 2 + 4 / 64,
    "nf4_double": 1 / 2 + 1 / 64 + 4 / 64 / 256,
    "fp8": 1,
}


# Of a GPU's memory, how much its shard of a base may take: beside it lie two gathered layers and a pass.
_SHARD_SHARE = 0.75
# and how much of it workers use at most for a base and a pass together (worker/policy/base_sharding.py): no job fits beside a
# copy that takes more
USABLE_SHARE = 0.9


@dataclass(frozen=True)
class GpuFit:
    """A type of GPU. memory_bytes: of the smallest GPU of the node that has most. sharded: by precision in which no GPU holds
    a copy, how many GPUs of a node share the base."""

    type: str
    memory_bytes: int
    precisions: list[Precision]
    sharded: dict[Precision, int]

    @property
    def fits(self) -> bool:
        return bool(self.precisions or self.sharded)


class NodeGpus(NamedTuple):
    """Of a node: bytes of its smallest GPU, how many it has, and whether its worker shards bases over them."""

    memory: int
    gpus: int
    shards: bool


def memory_of(node: Node) -> int:
    """Bytes of the node's smallest device; 0 where its devices cannot be read."""
    return min((int(str(device["memory_bytes"])) for device in node.devices), default=0)


def held_bytes(weight_bytes: int, memory: int, gpus: int, shards: bool) -> int | None:
    """Bytes of a base's weights on each of so many GPUs with so much memory: of a copy where one fits, else, where the node's
    worker shards bases, of a shard. None where neither fits. A lower bound, as the worker knows the rest."""
    if holds_copy(weight_bytes, memory):
        return weight_bytes
    shard = -(-weight_bytes // gpus)
    return shard if shards and gpus > 1 and shard <= _SHARD_SHARE * memory else None


def holds_copy(weight_bytes: float, memory: int) -> bool:
    """Whether a GPU with so much memory holds a base's weights beside a job."""
    return weight_bytes <= USABLE_SHARE * memory


def least_gpus(weight_bytes: int, memory: int, most: int, shards: bool) -> int | None:
    """The smallest power of two, up to `most`, of GPUs that hold the weights; None: none does."""
    widths = (1 << doublings for doublings in range(most.bit_length()))
    return next((gpus for gpus in widths if held_bytes(weight_bytes, memory, gpus, shards) is not None), None)


def gpus_of(session: Session) -> dict[str, list[NodeGpus]]:
    """The ready nodes' GPUs by type."""
    found = defaultdict[str, list[NodeGpus]](list)
    for node in session.scalars(select(Node).where(Node.status == "ready")):
        if node.unreadable:
            continue
        shards = SHARDED_BASES in (node.capabilities or ())
        found[node.device_type].append(NodeGpus(memory_of(node), len(node.devices), shards))
    return found


def fits_of(gpus: Mapping[str, Sequence[NodeGpus]], parameters: int) -> list[GpuFit]:
    """One for each type of GPU, sorted by type."""
    return [_fit(kind, nodes, parameters) for kind, nodes in sorted(gpus.items())]


def _fit(kind: str, nodes: Sequence[NodeGpus], parameters: int) -> GpuFit:
    memory = max(node.memory for node in nodes)
    whole: list[Precision] = []
    sharded: dict[Precision, int] = {}
    for precision, size in BYTES_PER_WEIGHT.items():
        least = [gpus for node in nodes if (gpus := least_gpus(round(parameters * size), *node)) is not None]
        if least and min(least) == 1:
            whole.append(precision)
        elif least:
            sharded[precision] = min(least)
    return GpuFit(kind, memory, whole, sharded)
