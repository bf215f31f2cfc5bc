"""Whether a task's passes keep their activations or recompute them in backward (activation checkpointing), and how many tokens
a micro-batch may hold then.

Pure: numbers in, choices out. Recomputing costs a forward more (a third of the time), so it is chosen where it is what fits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from worker.policy.admission import Capacity, room

_SHARE = 2  # of what is free beside the base, one part in so many is for activations: the others are for adapters


@dataclass
class Activations:
    """What was chosen for a task, and why. All its jobs share this object: it changes where a pass finds no memory yet."""

    recompute: bool
    reason: str

    def turn(self, other: "Activations") -> None:
        """Be that from now on."""
        self.recompute, self.reason = other.recompute, other.reason


@dataclass(frozen=True)
class Need:
    """What one task asks of a replica: tokens of its longest sequence, and the arena rows of each of its jobs."""

    capacity: Capacity  # as measured for rows as long as its own
    longest: int
    rows: tuple[int, ...]
    activations: Activations


def chosen(capacity: Capacity, longest: int, rows: Sequence[int], always: bool = False) -> Activations:
    """For a task whose longest sequence has so many tokens and whose jobs take so many arena rows each. always: an operator
    wants activations recomputed."""
    if capacity.recomputed is None:
        return Activations(False, "activations are kept: this worker cannot compute them again")
    if always:
        return Activations(True, "activations are computed again in backward: MOTET_WORKER_RECOMPUTE is set")
    most = max(rows, default=0)
    kept, again = (capacity.of(form).predict(longest, most) for form in (False, True))
    there = f"of the {_mib(capacity.usable_bytes)} MiB that this worker may use"
    what = f"a sequence of {longest} tokens beside {most} adapter rows"
    if kept <= capacity.usable_bytes:
        return Activations(False, f"activations are kept: {what} takes {_mib(kept)} MiB {there}")
    return Activations(
        True,
        f"activations are computed again in backward: {what} takes {_mib(kept)} MiB if they are kept and {_mib(again)} MiB if "
        f"not, {there}",
    )


def turned(tokens: int) -> Activations:
    """For a task with a sequence of so many tokens that found no memory while its activations were kept."""
    return Activations(
        True, f"activations are computed again in backward: a sequence of {tokens} tokens found no memory while they were kept"
    )


def step_tokens(needs: Iterable[Need], capacity: Capacity, most: int, shared: bool = True) -> int:
    """The most tokens of a micro-batch for these tasks: every job that fits at all fits alone; if `shared`, adapters have their
    share of the memory.

    A sequence that is longer has a micro-batch of its own, whatever comes out.
    """
    for need in needs:
        recompute = need.activations.recompute
        rows = max((rows for rows in need.rows if room(capacity, rows, recompute, need.longest) >= need.longest), default=0)
        fitting = room(capacity, rows, recompute, most)
        if shared:
            fitting = min(fitting, room(capacity, 0, recompute, _SHARE * most) // _SHARE)
        most = min(most, max(need.longest, fitting))
    return max(1, most)


def _mib(number: int) -> int:
    return number // 2**20
