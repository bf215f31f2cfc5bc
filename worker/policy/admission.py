"""Which waiting jobs may start: what they need under the memory model, a token budget, and an order of choice (ALTO 7.1, A.3).

Pure: numbers in, choices out. Knows neither how memory is measured nor what a job does with it.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from worker.policy.adapter_memory_model import Capacity, fitting_tokens


@dataclass(frozen=True)
class Demand:
    """What one job needs while it trains. Within a placement, the lower `turn` goes first."""

    key: Hashable
    placement: Hashable
    batch_size: int
    tokens: int  # expected of one optimizer step
    longest: int  # tokens of its longest sequence, which is never split
    adapter_rows: int
    turn: int = 0
    left: float = 0.0  # tokens that it is expected to train until its end
    recompute: bool = False  # its passes recompute activations


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
    return round(worst + captured + capacity.model.per_row * sum(d.adapter_rows for d in demands))


def admission_refusal(demand: Demand, capacity: Capacity) -> str | None:
    """Why the job could never run here, even alone; None if it can."""
    need, usable = peak([demand], capacity), capacity.usable_bytes
    if need <= usable:
        return None
    longest, row_mib = (
        fitting_tokens(capacity, demand.adapter_rows, demand.recompute, demand.longest),
        capacity.model.per_row / 2**20,
    )
    ways = [f"max_seq_len at most {longest}"] if longest > 0 else []
    ways += ["a lower rank" if longest > 0 else "a much lower rank", "a worker with more memory"]
    again = " with activations computed again in backward" if demand.recompute else ""
    return (
        f"needs {_mib(need)} MiB even alone{again}: {demand.adapter_rows} adapter rows of {row_mib:.2f} MiB and batches of "
        f"{demand.batch_size} sequences of up to {demand.longest} tokens, beside the base; "
        f"this worker may use {_mib(usable)} MiB of {_mib(capacity.memory_bytes)}; take {', '.join(ways[:-1])} or {ways[-1]}"
    )


def choose(running: Sequence[Demand], waiting: Sequence[Demand], capacity: Capacity) -> Demand | None:
    """The waiting job that starts next beside the running ones, if one may.

    Greedy in decreasing batch size, preferring sizes that already run (ALTO A.3). A job starts only if the memory model stays
    under the safety margin and one micro-batch is expected to hold the step; a placement with no running job needs only the
    memory. Placements with fewer tokens on the axis choose first. While the first choice of a placement with no running job
    does not fit, no job behind it starts, so no placement starves.
    """
    shares, sizes = Counter[Hashable](), {d.batch_size for d in running}
    for d in running:
        shares[d.placement] += d.tokens
    order = sorted(waiting, key=lambda d: _preference(d, shares, sizes))
    first = next((d for d in order if fits(d, running, capacity) or (running and d.placement not in shares)), None)
    return first if first is not None and fits(first, running, capacity) else None


def fits(demand: Demand, running: Sequence[Demand], capacity: Capacity) -> bool:
    """Whether memory holds the job beside the running ones and what is reserved for generation, and their micro-batch too,
    unless no job of its placement runs. Beside nothing it may use all: generation then takes what is left."""
    together = [*running, demand]
    if capacity.most_rows is not None and sum(d.adapter_rows for d in together) > capacity.most_rows:
        return False
    if peak(together, capacity) > capacity.usable_bytes - (capacity.reserved_bytes if running else 0):
        return False
    alone = all(d.placement != demand.placement for d in running)
    return alone or sum(d.tokens for d in together) <= capacity.pass_budget


def _preference(demand: Demand, shares: Counter[Hashable], sizes: set[int]) -> tuple[int, int, bool, int]:
    """Sort key, smallest first: its placement's tokens on the axis, its turn, a batch size not yet running, then the
    larger batch."""
    return shares[demand.placement], demand.turn, bool(sizes) and demand.batch_size not in sizes, -demand.batch_size


def _mib(number: int) -> int:
    return number // 2**20
