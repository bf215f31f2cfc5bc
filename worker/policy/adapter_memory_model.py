"""How much memory steps take: the memory model, its correction after a failed pass, and how many adapter rows (R_cap) and
tokens fit (ALTO 7.1 and A.3).

Pure: numbers in, numbers out. Knows neither how memory is measured nor which jobs there are.
"""

import math
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
    """An executor's limits: its memory models, the bytes it may use, the share of them it fills. piece_tokens: the most of a
    piece, which a job's batch is split into; a pass holds pieces of several jobs, up to `pass_budget` tokens."""

    model: MemoryModel  # of passes that keep their activations
    memory_bytes: int
    piece_tokens: int
    margin: float = 0.9
    park_bytes: int = 0  # host memory for parked adapters
    lowest_bytes: float = math.inf  # and for weights at lowest losses; no limit where `per_row` counts them
    recomputed: MemoryModel | None = None  # of passes that recompute them in backward; None if not measured
    most_rows: int | None = None  # arena rows beyond which the device had no memory
    long_pass_tokens: int = 0  # of a micro-batch where longer ones pay; batches are split by piece_tokens all the same
    most_pass_tokens: int = 0  # up to which they may be made longer; 0 where an operator chose their length
    reserved_bytes: int = 0  # that jobs beside each other leave to generation: generation_memory.py; a job alone may use them

    @property
    def pass_budget(self) -> int:
        """The most tokens of a pass, that is of a micro-batch."""
        return max(self.piece_tokens, self.long_pass_tokens)

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


def capacity_after_oom(capacity: Capacity, tokens: int, rows: int, recompute: bool = False) -> Capacity:
    """The capacity after a pass of `tokens` tokens over `rows` adapter rows ran out of memory: raises per_token until the model
    predicts that failure, and halves the tokens of micro-batches; where these had been made longer, undoes only that."""
    model = capacity.of(recompute)
    seen = (capacity.memory_bytes - model.predict(0, rows)) / tokens
    capacity = capacity.having(recompute, replace(model, per_token=max(model.per_token, seen)))
    if capacity.piece_tokens < tokens <= capacity.long_pass_tokens:
        return replace(capacity, long_pass_tokens=0)
    capacity = replace(capacity, long_pass_tokens=0)
    return replace(capacity, piece_tokens=max(1, min(capacity.piece_tokens, tokens) // 2))


def grown_capacity(capacity: Capacity, most: int, rows: int, recompute: bool = False) -> Capacity:
    """The capacity after a while without failures: micro-batches grow by half, up to `most` tokens and to what the model,
    refitted to every failed pass, allows beside `rows` adapter rows. Never smaller."""
    fitting = fitting_tokens(capacity, rows, recompute, most, capacity.reserved_bytes)
    tokens = min(most, -(-capacity.piece_tokens * 3 // 2), fitting)
    return replace(capacity, piece_tokens=max(capacity.piece_tokens, tokens))


def fitting_tokens(capacity: Capacity, rows: int, recompute: bool, most: int, reserved: int = 0) -> int:
    """Tokens of the largest pass of this kind beside `rows` adapter rows and `reserved` bytes, up to `most`; below 0 where not
    even the rows fit."""
    model = capacity.of(recompute)
    left = capacity.usable_bytes - reserved - model.predict(0, rows)
    return math.floor(min(left / model.per_token, most)) if model.per_token and left < model.per_token * most else most


def max_arena_rows(capacity: Capacity, tokens: int, recompute: bool = False) -> int:
    """R_cap: the most adapter rows that the arena may have beside micro-batches of `tokens` tokens (ALTO A.3)."""
    model = capacity.of(recompute)
    left = capacity.usable_bytes - model.predict(tokens, 0)
    return max(0, int(left // model.per_row)) if model.per_row else 0
