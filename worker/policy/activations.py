"""Chooses whether a task's passes keep activations or recompute them in backward (activation checkpointing), and how many
tokens a micro-batch then holds.

Pure: numbers in, choices out. Recomputing adds a forward (a third of the time), so a task recomputes only where keeping does
not fit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from worker.policy.adapter_memory_model import Capacity, fitting_tokens

_SHARE = 2  # one part in so many of the memory beside the base is for activations, the rest for adapters


@dataclass
class Activations:
    """A task's choice, and why. All its jobs share this object: it changes in place when a pass runs out of memory."""

    recompute: bool
    reason: str

    def copy_from(self, other: "Activations") -> None:
        """Take over another choice, in place."""
        self.recompute, self.reason = other.recompute, other.reason


@dataclass(frozen=True)
class Need:
    """One task's demand on a replica: tokens of its longest sequence, and the arena rows of each of its jobs."""

    capacity: Capacity  # as measured for rows as long as its own
    longest: int
    adapter_rows: tuple[int, ...]
    activations: Activations
    generation_bytes: int = 0  # to be reserved for the texts of its evaluation


def choose_activations(capacity: Capacity, longest: int, rows: Sequence[int], always: bool = False) -> Activations:
    """The choice for a task whose longest sequence has `longest` tokens and whose jobs take `rows` arena rows each. always: an
    operator wants activations recomputed."""
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


def recompute_after_oom(tokens: int) -> Activations:
    """Recomputation, for a task with a sequence of `tokens` tokens that ran out of memory with its activations kept."""
    return Activations(
        True, f"activations are computed again in backward: a sequence of {tokens} tokens found no memory while they were kept"
    )


def micro_batch_limit(needs: Iterable[Need], capacity: Capacity, most: int, shared: bool = True) -> int:
    """Tokens of a micro-batch for these tasks, at most `most`: every job that fits at all fits alone; `shared` also leaves
    adapters their share of the memory.

    A longer sequence always gets a micro-batch of its own.
    """
    for need in needs:
        recompute = need.activations.recompute
        rows = max(
            (rows for rows in need.adapter_rows if fitting_tokens(capacity, rows, recompute, need.longest) >= need.longest),
            default=0,
        )
        fitting = fitting_tokens(capacity, rows, recompute, most)
        if shared:
            fitting = min(fitting, fitting_tokens(capacity, 0, recompute, _SHARE * most) // _SHARE)
        most = min(most, max(need.longest, fitting))
    return max(1, most)


def _mib(number: int) -> int:
    return number // 2**20
