"""Which waiting jobs may start: a memory model, a token budget, and an order of choice (ALTO 7.1 and A.3).

Pure: numbers in, choices out. Knows neither how memory is measured nor what a job does with it.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class MemoryModel:
    """Peak bytes of a step: k0 + k1 x tokens of its largest micro-batch + k2 x adapter rows in the arena (ALTO A.3)."""

    fixed: float  # k0: the base, and everything else that does not grow
    per_token: float  # k1
    per_row: float  # k2
    captured: float = 0.0  # pool of captured graphs, which does not grow either

    def predict(self, tokens: int, rows: int) -> int:
        return round(self.fixed + self.captured + self.per_token * tokens + self.per_row * rows)


@dataclass(frozen=True)
class Capacity:
    """An executor's limits: its memory models, the bytes it may use, the share of them it fills, the micro-batch's tokens."""

    model: MemoryModel  # of passes that keep their activations
    memory_bytes: int
    step_tokens: int
    margin: float = 0.9
    park_bytes: int = 0  # host memory for parked adapters
    recomputed: MemoryModel | None = None  # of passes that recompute them in backward; None if not measured
    most_rows: int | None = None  # arena rows beyond which the device had no memory
    pass_tokens: int = 0  # of a micro-batch where longer ones pay; batches are cut by step_tokens all the same
    most_pass_tokens: int = 0  # up to which they may be made longer; 0 where an operator chose their length

    @property
    def pass_budget(self) -> int:
        """Tokens of a micro-batch."""
        return max(self.step_tokens, self.pass_tokens)

    @property
    def usable_bytes(self) -> int:
        return int(self.memory_bytes * self.margin)

    def of(self, recompute: bool) -> MemoryModel:
        """The memory model of this kind of pass."""
        return self.recomputed if recompute and self.recomputed is not None else self.model

    def having(self, recompute: bool, model: MemoryModel) -> "Capacity":
        """A copy with another memory model for this kind of pass."""
        if recompute and self.recomputed is not None:
            return replace(self, recomputed=model)
        return replace(self, model=model)


@dataclass(frozen=True)
class Demand:
    """What one job needs while it trains. `group` is its task; within a group, the lower `turn` goes first."""

    key: Hashable
    group: Hashable
    batch_size: int
    tokens: int  # expected of one optimizer step
    longest: int  # tokens of its longest sequence, which is never split
    rows: int
    turn: int = 0
    left: float = 0.0  # tokens that it is expected to train until its end
    recompute: bool = False  # its passes recompute activations


def refitted(capacity: Capacity, tokens: int, rows: int, recompute: bool = False) -> Capacity:
    """The capacity after a pass of `tokens` tokens over `rows` adapter rows ran out of memory: raises per_token until the model
    predicts that failure, and halves the tokens of micro-batches; where these had been made longer, undoes only that."""
    model = capacity.of(recompute)
    seen = (capacity.memory_bytes - model.predict(0, rows)) / tokens
    capacity = capacity.having(recompute, replace(model, per_token=max(model.per_token, seen)))
    if capacity.step_tokens < tokens <= capacity.pass_tokens:
        return replace(capacity, pass_tokens=0)
    capacity = replace(capacity, pass_tokens=0)
    return replace(capacity, step_tokens=max(1, min(capacity.step_tokens, tokens) // 2))


def peak(demands: Sequence[Demand], capacity: Capacity) -> int:
    """Bytes at the worst step of these jobs together. A pass recomputes activations if any job in it does."""
    if not demands:
        return capacity.model.predict(0, 0)
    kept = [d for d in demands if not d.recompute]
    passes = [(form, parts) for form, parts in ((False, kept), (True, demands if len(kept) < len(demands) else [])) if parts]
    worst, captured = 0.0, 0.0
    for recompute, parts in passes:
        model = capacity.of(recompute)
        longest = max(d.longest for d in parts if d.recompute is recompute)
        tokens = max(longest, min(sum(d.batch_size * d.longest for d in parts), capacity.pass_budget))
        worst = max(worst, model.fixed + model.per_token * tokens)
        captured = max(captured, model.captured)
    return round(worst + captured + capacity.model.per_row * sum(d.rows for d in demands))


def rows_cap(capacity: Capacity, tokens: int, recompute: bool = False) -> int:
    """R_cap: the most adapter rows that the arena may have beside micro-batches of `tokens` tokens (ALTO A.3)."""
    model = capacity.of(recompute)
    left = capacity.usable_bytes - model.predict(tokens, 0)
    return max(0, int(left // model.per_row)) if model.per_row else 0


def regrown(capacity: Capacity, most: int, rows: int, recompute: bool = False) -> Capacity:
    """The capacity after a while without failures: micro-batches grow by half, up to `most` tokens and to what the model,
    refitted to every failed pass, allows beside `rows` adapter rows. Never smaller."""
    tokens = min(most, -(-capacity.step_tokens * 3 // 2), room(capacity, rows, recompute, most))
    return replace(capacity, step_tokens=max(capacity.step_tokens, tokens))


def room(capacity: Capacity, rows: int, recompute: bool, most: int) -> int:
    """Tokens of the largest pass of this kind beside `rows` adapter rows, up to `most`; below 0 where not even the rows fit."""
    model = capacity.of(recompute)
    left = capacity.usable_bytes - model.predict(0, rows)
    return math.floor(min(left / model.per_token, most)) if model.per_token and left < model.per_token * most else most


def refusal(demand: Demand, capacity: Capacity) -> str | None:
    """Why the job could never run here, even alone; None if it can."""
    need, usable = peak([demand], capacity), capacity.usable_bytes
    if need <= usable:
        return None
    longest, row_mib = room(capacity, demand.rows, demand.recompute, demand.longest), capacity.model.per_row / 2**20
    ways = [f"max_seq_len at most {longest}"] if longest > 0 else []
    ways += ["a lower rank" if longest > 0 else "a much lower rank", "a worker with more memory"]
    again = " with activations computed again in backward" if demand.recompute else ""
    return (
        f"needs {_mib(need)} MiB even alone{again}: {demand.rows} adapter rows of {row_mib:.2f} MiB and batches of "
        f"{demand.batch_size} sequences of up to {demand.longest} tokens, beside the base; "
        f"this worker may use {_mib(usable)} MiB of {_mib(capacity.memory_bytes)}; take {', '.join(ways[:-1])} or {ways[-1]}"
    )


def choose(running: Sequence[Demand], waiting: Sequence[Demand], capacity: Capacity) -> Demand | None:
    """The waiting job that starts next beside the running ones, if one may.

    Greedy in decreasing batch size, preferring sizes that already run (ALTO A.3). A job starts only if the memory model stays
    under the safety margin and one micro-batch is expected to hold the step; a group with no running job needs only the memory.
    Groups with fewer tokens on the axis choose first. While the first choice of a group with no running job does not fit, no
    job behind it starts, so no group starves.
    """
    shares, sizes = Counter[Hashable](), {d.batch_size for d in running}
    for d in running:
        shares[d.group] += d.tokens
    order = sorted(waiting, key=lambda d: _preference(d, shares, sizes))
    first = next((d for d in order if fits(d, running, capacity) or (running and d.group not in shares)), None)
    return first if first is not None and fits(first, running, capacity) else None


def fits(demand: Demand, running: Sequence[Demand], capacity: Capacity) -> bool:
    """Whether memory holds the job beside the running ones, and their micro-batch too, unless no job of its group runs."""
    together = [*running, demand]
    if capacity.most_rows is not None and sum(d.rows for d in together) > capacity.most_rows:
        return False
    if peak(together, capacity) > capacity.usable_bytes:
        return False
    alone = all(d.group != demand.group for d in running)
    return alone or sum(d.tokens for d in together) <= capacity.pass_budget


def _preference(demand: Demand, shares: Counter[Hashable], sizes: set[int]) -> tuple[int, int, bool, int]:
    """Sort key, smallest first: its group's tokens on the axis, its turn, a batch size not yet running, then the
    larger batch."""
    return shares[demand.group], demand.turn, bool(sizes) and demand.batch_size not in sizes, -demand.batch_size


def _mib(number: int) -> int:
    return number // 2**20
