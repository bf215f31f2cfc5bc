"""The sweep's figures by name, from its rows. A part that has not run has no figures. Measures nothing."""

from itertools import product
from typing import Any

from benchmarks.quality.base_set_pairs import BATCH_SIZES, RANKS
from benchmarks.quality.readme_table import OURS
from benchmarks.sequential_peft import COMPILED, SEQUENTIAL
from benchmarks.sweep.live_search import EVALUATION_SHARE, RATES
from benchmarks.sweep.solo_steps import SOLO
from benchmarks.sweep.stopwatch import EVALUATION, OTHER, TRAINING

SEARCH = "60 configurations through the executor, "  # and the policy
SPLIT = "where the search's seconds went"
Rows = list[dict[str, Any]]


def figures(rows: Rows) -> dict[str, float]:
    """By name. x_ figures are times of others over ours."""
    found = {row["what"]: row for row in rows if row["what"] in (SEARCH + OURS, SEARCH + "none", SPLIT)}
    ours = found.get(SEARCH + OURS)
    if ours is None:
        return {}
    values = {"minutes_ours": ours["seconds"] / 60, "samples_saved": ours["samples_saved"]}
    if SPLIT in found:
        values["idle_fraction"] = found[SPLIT]["idle"] / ours["seconds"]
    contestants: dict[str, tuple[str, ...]] = {"sequential": (SEQUENTIAL,), "solo_graphed": (SOLO,)}
    if any(row["what"] == COMPILED for row in rows):
        contestants["sequential_fastest"] = (SEQUENTIAL, COMPILED)
    others = {name: seconds for name, whats in contestants.items() if (seconds := in_sequence(rows, ours, whats)) is not None}
    for name, seconds in others.items():
        values |= {f"x_{name}": seconds / ours["seconds"], f"hours_{name}": seconds / 3600}
    if SEARCH + "none" in found:
        whole = without_exit(ours, found[SEARCH + "none"])
        values["minutes_batching_only"] = whole / 60
        values |= {f"x_{name}_batching_only": seconds / whole for name, seconds in others.items()}
    return values


def in_sequence(rows: Rows, ours: dict[str, Any], whats: tuple[str, ...]) -> float | None:
    """Seconds of the search's configurations one after another: at each batch size, and rank where rows tell it apart, a step's
    measured milliseconds times the number of steps; of several contestants the fastest. None before all batch sizes ran."""
    cells: dict[tuple[int, int | None], list[float]] = {}
    for row in rows:
        if row["what"] in whats:
            cells.setdefault((row["batch"], row.get("rank")), []).append(row["ms"] / row.get("steps", row.get("adapters")))
    if set(cells) not in ({(size, None) for size in BATCH_SIZES}, set(product(BATCH_SIZES, RANKS))):
        return None
    seconds = 0.0
    for (batch, rank), ms in cells.items():
        jobs = len(RATES) * (len(RANKS) if rank is None else 1)
        seconds += jobs * ours["epochs"] * -(-ours["rows_trained"] // batch) * min(ms) / 1e3
    return seconds


def without_exit(ours: dict[str, Any], none: dict[str, Any]) -> float:
    """Seconds that the search would take if no job ended early. Training is scaled from `none`, which took fewer rows. As the
    product's default allows, evaluations read EVALUATION_SHARE of the training tokens; one costs what it did in `ours`."""
    share, wall = ours["samples_full"] / none["samples_full"], none["wall"]
    assert EVALUATION_SHARE is not None, "the product bounds evaluations"
    tokens = EVALUATION_SHARE * none["tokens_trained"] * share
    evaluating = tokens * ours["wall"][EVALUATION] / ours["tokens_evaluated"]
    scaled: float = none["seconds"] + (share - 1) * (wall[TRAINING] + wall[OTHER]) + evaluating - wall[EVALUATION]
    return scaled
