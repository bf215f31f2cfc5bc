"""How much of a base the ranks of an executor shard: nothing where a whole copy fits on each device beside a pass, else as few
layers as make room for a pass and the task's adapters, then the embedding and the head.

Pure: bytes in, a choice out. Adapters are never sharded: each lies on one rank, with its job (ALTO 6.2).
"""

from dataclasses import dataclass

_MARGIN = 0.9  # of a device's memory, as of Capacity
_BUFFERS = 2  # gather buffers: the layer that computes, and the one that is prefetched


@dataclass(frozen=True)
class BaseSizes:
    """Bytes of a base on one device, as stored. layers: each layer's linear maps. ends: embedding and head where they are two
    matrices, else nothing. resident: all else, which every rank holds whole."""

    layers: tuple[int, ...]
    ends: tuple[int, ...]
    resident: int

    @property
    def whole(self) -> int:
        return self.resident + sum(self.layers) + sum(self.ends)


@dataclass(frozen=True)
class ShardPlan:
    """Which parts of a base `world` ranks shard. layers: indexes, ascending. ends: embedding and head too."""

    world: int
    layers: tuple[int, ...]
    ends: bool = False

    def bytes_per_rank(self, sizes: BaseSizes) -> int:
        """Of the base on each device: what is resident, this rank's shards, and the gather buffers."""
        sharded = [sizes.layers[layer] for layer in self.layers] + (list(sizes.ends) if self.ends else [])
        buffers = min(_BUFFERS, len(sharded)) * max(sharded)
        return sizes.whole - sum(sharded) + -(-sum(sharded) // self.world) + buffers

    def sentence(self, sizes: BaseSizes) -> str:
        """For a log and a task's events."""
        what = f"{len(self.layers)} of its {len(sizes.layers)} layers" + (", embedding and head" if self.ends else "")
        return (
            f"the base is {'sharded' if len(self.layers) == len(sizes.layers) else 'partly sharded'} over {self.world} devices "
            f"({what}): {_mib(self.bytes_per_rank(sizes))} MiB on each instead of {_mib(sizes.whole)}"
        )


def everything(sizes: BaseSizes, world: int) -> ShardPlan:
    """All that can be sharded."""
    return ShardPlan(world, tuple(range(len(sizes.layers))), bool(sizes.ends))


def plan_sharding(sizes: BaseSizes, world: int, memory_bytes: int, room: int, wanted: int = 0) -> ShardPlan | None:
    """None where a whole copy leaves each device `room` bytes beside it, whatever else is wanted; else the least sharding that
    leaves `room` and `wanted` bytes. Where none does, the one that takes least: what then fits is admission's question."""
    usable = int(memory_bytes * _MARGIN) - room
    if world < 2 or sizes.whole <= usable:
        return None
    usable -= wanted
    count = len(sizes.layers)
    plans = [ShardPlan(world, spread(some, count)) for some in range(1, count + 1)]
    plans = [*plans, everything(sizes, world)]
    return next(
        (plan for plan in plans if plan.bytes_per_rank(sizes) <= usable),
        min(plans, key=lambda plan: plan.bytes_per_rank(sizes)),
    )


def spread(some: int, count: int) -> tuple[int, ...]:
    """`some` of `count` layers, evenly spread, so that gathers overlap with the layers between them."""
    return tuple(layer for layer in range(count) if (layer + 1) * some // count > layer * some // count)


def _mib(number: int) -> int:
    return number // 2**20
