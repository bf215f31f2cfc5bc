"""Which GPUs of the fleet hold a base's weights, and in which precisions: the planner's own rule, asked before any task."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

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


@dataclass(frozen=True)
class GpuFit:
    """A type of GPU. memory_bytes: of the smallest GPU of the node that has most."""

    type: str
    memory_bytes: int
    precisions: list[Precision]


def memory_of(node: Node) -> int:
    """Bytes of the node's smallest device."""
    return min(int(str(device["memory_bytes"])) for device in node.devices)


def held_bytes(weight_bytes: int, memory: int, gpus: int, shards: bool) -> int | None:
    """Bytes of a base's weights on each of so many GPUs with so much memory: of a copy where one fits, else, where the node's
    worker shards bases, of a shard. None where neither fits. A lower bound, as the worker knows the rest."""
    if weight_bytes <= memory:
        return weight_bytes
    shard = -(-weight_bytes // gpus)
    return shard if shards and gpus > 1 and shard <= _SHARD_SHARE * memory else None


def least_gpus(weight_bytes: int, memory: int, most: int, shards: bool) -> int | None:
    """The smallest power of two, up to `most`, of GPUs that hold the weights; None: none does."""
    widths = (1 << doublings for doublings in range(most.bit_length()))
    return next((gpus for gpus in widths if held_bytes(weight_bytes, memory, gpus, shards) is not None), None)


def gpus_of(session: Session) -> dict[str, int]:
    """By type of GPU of the ready nodes: bytes of the smallest GPU of the node that has most."""
    most = dict[str, int]()
    for node in session.scalars(select(Node).where(Node.status == "ready")):
        most[node.device_type] = max(most.get(node.device_type, 0), memory_of(node))
    return most


def fits_of(gpus: Mapping[str, int], parameters: int) -> list[GpuFit]:
    """One for each type of GPU, sorted by type."""
    return [GpuFit(kind, memory, _precisions(parameters, memory)) for kind, memory in sorted(gpus.items())]


def _precisions(parameters: int, memory: int) -> list[Precision]:
    return [precision for precision, size in BYTES_PER_WEIGHT.items() if parameters * size <= memory]
