"""Assigns jobs to an executor's replicas: waiting jobs that start, and running jobs that move to a replica with far less to do.

Pure: numbers in, choices out. A replica is a copy of the base on its own device; all replicas step together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from worker.policy.adapter_memory_model import Capacity
from worker.policy.admission import Demand, choose, fits, peak

_LEAD = 0.25  # a move must save at least this share of what the giver has left
_STEPS = 4  # and this many steps of all its jobs, since a move costs a copy to the host and one back


@dataclass(frozen=True)
class Load:
    """A replica's running jobs, and its capacity."""

    running: tuple[Demand, ...]
    capacity: Capacity

    @property
    def left(self) -> float:
        return sum(demand.left for demand in self.running)


@dataclass(frozen=True)
class Move:
    """A running job moves from replica `giver` to replica `taker` (indexes)."""

    demand: Demand
    giver: int
    taker: int


def assign(loads: Sequence[Load], waiting: Sequence[Demand]) -> list[list[Demand]]:
    """The waiting jobs that start now on each replica, in order. The replica with the least left to train chooses first.

    Where nothing runs and none fits, by what passes without memory have taught since it came, the least of them tries alone:
    no end of another job would let it start, and its own passes show whether it can be run.
    """
    running = [list(load.running) for load in loads]
    assigned: list[list[Demand]] = [[] for _ in loads]
    left = list(waiting)
    while True:
        for at in sorted(range(len(loads)), key=lambda at: (sum(d.left for d in running[at]), at)):
            demand = choose(running[at], left, loads[at].capacity)
            if demand is not None:
                running[at].append(demand)
                assigned[at].append(demand)
                left.remove(demand)
                break
        else:
            break
    free = [at for at, load in enumerate(loads) if load.capacity.most_rows is None]
    if left and free and not any(running):
        at, demand = min(((at, d) for at in free for d in left), key=lambda pair: _lacks(pair[1], loads[pair[0]].capacity))
        assigned[at].append(demand)
    return assigned


def _lacks(demand: Demand, capacity: Capacity) -> int:
    """Bytes that the job would lack alone."""
    return peak([demand], capacity) - capacity.usable_bytes


def next_move(loads: Sequence[Load]) -> Move | None:
    """The running job to move from the replica with the most left to the one with the least; None where the move saves little.

    Picks the job that brings the two closest together. Each takeover makes the replicas more even, so repeated calls end.
    """
    order = sorted(range(len(loads)), key=lambda at: (loads[at].left, at))
    taker, giver = order[0], order[-1]
    most, lead = loads[giver].left, loads[giver].left - loads[taker].left
    least = max(_LEAD * most, _STEPS * sum(d.tokens for d in loads[giver].running))
    worth = [
        d
        for d in loads[giver].running
        if min(d.left, lead - d.left) >= least and fits(d, loads[taker].running, loads[taker].capacity)
    ]
    if not worth:
        return None
    return Move(min(worth, key=lambda d: abs(lead / 2 - d.left)), giver, taker)
