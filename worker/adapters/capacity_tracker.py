"""One replica's capacity for its current tasks: the memory model, corrected by passes that found no memory, and the tokens of a
micro-batch. Holds no adapters and runs nothing."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from worker.model.plain.trainer import OutOfMemory
from worker.policy.activations import Need, choose_activations, micro_batch_limit, recompute_after_oom
from worker.policy.adapter_memory_model import Capacity, capacity_after_oom, fitting_tokens, grown_capacity
from worker.policy.job_record import JobKey

log = logging.getLogger(__name__)

_QUIET_STEPS = 100  # without a failure, after which reduced micro-batches grow again


class CapacityTracker:
    """`capacity`: the one in use now."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = self._measured = capacity
        self._needs: dict[str, Need] = {}  # of the current tasks
        self._asked = capacity.piece_tokens  # tokens of a micro-batch, where memory allows
        self._most_tokens = capacity.piece_tokens  # the same, for the current tasks
        self._learned: dict[bool, float] = {}  # bytes a token of failed passes, by whether they recomputed
        self._quiet = 0  # steps since the last failure
        self._held_bytes = 0  # by the cache of completions
        self._piece_tokens: dict[str, int] = {}  # tokens of a piece of each task's batches, by its own needs and failures alone

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence of any current task."""
        return max((need.longest for need in self._needs.values()), default=0)

    @property
    def recomputes(self) -> bool:
        """Whether every pass recomputes its activations."""
        return bool(self._needs) and all(need.activations.recompute for need in self._needs.values())

    def add_placement(self, placement: str, need: Need) -> None:
        """Add a task. It recomputes activations if passes that failed since it was measured show that keeping them does not
        fit."""
        self._needs[placement] = need
        self._piece_tokens[placement] = self._own_piece_tokens(need)
        self._recompute()
        if not need.activations.recompute:
            need.activations.copy_from(choose_activations(self.capacity, need.longest, need.adapter_rows))
            self._recompute()
        kept, again, mib = self.capacity.model, self.capacity.of(True), 2**20
        log.info(
            "memory: %d MiB + %.3f MiB a token, recomputed %d MiB + %.3f MiB a token, + %.2f MiB a row, of %d MiB; "
            "steps of %d tokens",
            *(kept.predict(0, 0) // mib, kept.per_token / mib, again.predict(0, 0) // mib, again.per_token / mib),
            *(kept.per_row / mib, self.capacity.usable_bytes // mib, self.capacity.piece_tokens),
        )

    def piece_tokens(self, placement: str) -> int:
        """Tokens of a piece of the task's batches. A neighbour's failures make passes shorter, but not another task's pieces,
        since the bits of its sums depend on where its batches are split."""
        return self._piece_tokens.get(placement, self.capacity.piece_tokens)

    def _own_piece_tokens(self, need: Need) -> int:
        return micro_batch_limit([need], need.capacity, self._asked)

    def remove_placement(self, placement: str) -> bool:
        """Remove a task, and the limits that it alone caused. Whether it was here. With the last one all that failed passes
        showed is forgotten: what had the memory may be gone, and the next task's own pass shows whether it is."""
        self._piece_tokens.pop(placement, None)
        if self._needs.pop(placement, None) is None:
            return False
        if not self._needs and self._learned:
            self._learned.clear()
            self.capacity = replace(self._measured, long_pass_tokens=self.capacity.long_pass_tokens)
            self._most_tokens = self._measured.piece_tokens
        self._recompute()
        return True

    def reserve(self, held_bytes: int) -> None:
        """Completions hold a cache of so many bytes now, which jobs that join have to leave them."""
        self._held_bytes = held_bytes
        self.capacity = replace(self.capacity, reserved_bytes=self._reserved_bytes)

    @property
    def _reserved_bytes(self) -> int:
        """Texts of all tasks share one cache."""
        return self._held_bytes + max((need.generation_bytes for need in self._needs.values()), default=0)

    def limit_rows(self, rows: int | None) -> None:
        """Limit admission to `rows` arena rows, beyond which the arena found no memory; None: it may try again."""
        self.capacity = replace(self.capacity, most_rows=rows)

    def shrink_after_oom(self, error: OutOfMemory, jobs: Sequence[JobKey], rows: int) -> dict[JobKey, str]:
        """A pass of these jobs, beside `rows` arena rows, found no memory: use smaller micro-batches from now on. A task with a
        sequence as long as the pass recomputes activations from now on, where it kept them. A pass that kept them shows nothing
        of a task that recomputes them, unless it was that task's own.

        Returns the jobs that cannot run, and why: they have a sequence of that length, and cannot switch to recomputing. Each
        call shortens one task's pieces or the passes of all, or lets a task recompute or fail, so that trying again ends.
        """
        self._quiet = 0
        own = self._needs.get(error.sole_placement) if error.sole_placement is not None else None
        if error.sole_placement is not None and own is not None and error.tokens > own.longest:
            self._piece_tokens[error.sole_placement] = max(1, error.tokens // 2)
        long = {
            placement: need
            for placement, need in self._needs.items()
            if need.longest >= error.tokens
            and (error.recompute or not need.activations.recompute or placement == error.sole_placement)
        }
        here = {key.placement for key in jobs} & long.keys()
        may = self.capacity.recomputed is not None and not error.recompute
        turning = [placement for placement in long if placement in here and may and not long[placement].activations.recompute]
        lower = capacity_after_oom(self.capacity, error.tokens, rows, error.recompute)
        self._learned[error.recompute] = lower.of(error.recompute).per_token
        self.capacity = replace(lower, piece_tokens=self.capacity.piece_tokens) if turning else lower
        for placement in turning:
            long[placement].activations.copy_from(recompute_after_oom(error.tokens))
        if turning:
            self._recompute()
        log.warning(
            "out of memory in a pass of %d tokens; micro-batch limit reduced to %d tokens%s",
            *(error.tokens, self.capacity.piece_tokens),
            f"; activations are recomputed for placements {', '.join(turning)}" if turning else "",
        )
        unrunnable = here - set(turning)
        return {key: self._why_unrunnable(long[key.placement], error.tokens) for key in jobs if key.placement in unrunnable}

    def record_step(self, rows: int) -> bool:
        """Record a step that found its memory. Whether reduced micro-batches grew just now, as they do every _QUIET_STEPS
        steps."""
        self._quiet += 1
        if self.capacity.piece_tokens == self._most_tokens or self._quiet % _QUIET_STEPS:
            return False
        before, most = (
            self.capacity.piece_tokens,
            micro_batch_limit(self._needs.values(), self.capacity, self._most_tokens, shared=False),
        )
        self.capacity = grown_capacity(self.capacity, most, rows, self.recomputes)
        for placement, need in self._needs.items():
            self._piece_tokens[placement] = max(
                self._piece_tokens[placement], min(self._own_piece_tokens(need), self.capacity.piece_tokens)
            )
        return self.capacity.piece_tokens > before

    def lengthen(self, tokens: int, rows: int) -> bool:
        """Let micro-batches hold up to `tokens` tokens, as far as memory allows beside `rows` arena rows. Whether they grew by
        a quarter or more."""
        before = self.capacity.pass_budget
        fitting = micro_batch_limit(self._needs.values(), self.capacity, min(tokens, self.capacity.most_pass_tokens))
        fitting = min(fitting, fitting_tokens(self.capacity, rows, self.recomputes, fitting, self.capacity.reserved_bytes))
        if fitting < 1.25 * before:
            return False
        self.capacity = replace(self.capacity, long_pass_tokens=fitting)
        log.info("micro-batch limit raised to %d tokens (better throughput)", fitting)
        return True

    def _recompute(self) -> None:
        """Compute the capacity anew: from the highest memory model of the current tasks, corrected by failed passes."""
        needs, tokens, lowered = (
            self._needs.values(),
            self.capacity.piece_tokens,
            self.capacity.piece_tokens < self._most_tokens,
        )
        has = max((need.capacity for need in needs), key=lambda c: c.model.per_token, default=self.capacity)
        self._most_tokens = micro_batch_limit(needs, has, self._asked)
        for recompute, per_token in self._learned.items():
            model = has.of(recompute)
            has = has.having(recompute, replace(model, per_token=max(model.per_token, per_token)))
        tokens = min(tokens, self._most_tokens) if lowered else self._most_tokens
        longer = micro_batch_limit(needs, has, self.capacity.long_pass_tokens) if self.capacity.long_pass_tokens else 0
        tokens = micro_batch_limit(needs, has, tokens, shared=False)
        self.capacity = replace(
            has, piece_tokens=tokens, long_pass_tokens=longer, most_rows=None, reserved_bytes=self._reserved_bytes
        )

    def _why_unrunnable(self, need: Need, tokens: int) -> str:
        form = "with activations computed again in backward" if need.activations.recompute else "with its activations kept"
        usable, memory = (number >> 20 for number in (self.capacity.usable_bytes, self.capacity.memory_bytes))
        return (
            f"its sequences are up to {need.longest} tokens long, and the device ran out of memory in a pass of "
            f"{tokens} tokens {form}; this worker may use {usable} MiB of {memory}; "
            "take a lower max_seq_len, or a worker with more memory"
        )
