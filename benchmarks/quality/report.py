"""Report over the finished sweeps: rows, figures, plot. Trains nothing."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from benchmarks.quality.base_set_pairs import PAIRS, RATES, spec_of
from benchmarks.quality.halved_searches import halved_searches
from benchmarks.quality.peers import asha, hyperband, random_subset, tpe
from benchmarks.quality.recorded_sweep import Sweep
from benchmarks.quality.replay import (
    Outcome,
    base_unseen,
    best_unseen,
    full_loss,
    plainly_unseen,
    rankings,
    redrawn_regrets,
    replay,
    replay_live,
    unseen,
    used,
)
from benchmarks.quality.sweep_plot import draw
from benchmarks.result_file import RESULTS, current_commit, write_result
from contract.early_exit_policy import EarlyExitPolicy
from contract.row_scores import RowScores
from contract.task_spec import TaskSpec

OURS = EarlyExitPolicy().policy  # the default policy, whose figures are the headline
POLICIES = ("alto", "alto_guarded")
DRAWS = 24  # of which rows validate and which nobody sees: one draw says little of a set of few rows
# Variants of the defaults, which only sets that choose may compare.
VARIANTS: dict[str, dict[str, Any]] = {
    "keep_0.15": {"keep_fraction": 0.15},
    "keep_0.35": {"keep_fraction": 0.35},
    "rank_cut": {"policy": "alto"},
    "warmup_0.05": {"warmup_fraction": 0.05},
    "guard_3": {"guard_patience": 3},
    "guard_12": {"guard_patience": 12},
}


@dataclass(frozen=True)
class _References:
    """What a sweep's outcomes are measured by. On the test part: best: the best of full training's finalists, or the base alone
    where none is better; plain: the lowest loss of full training's weights of one step, where no adapter is a mean of several,
    or the base's; base: the base alone. lowest: full training's lowest loss on all validation rows."""

    best: RowScores
    plain: float
    base: RowScores
    lowest: float


def report(state: Path, commit: str | None, small: bool = False, out: Path | None = None, beside: Path | None = None) -> str:
    """Write the result file and the plot; returns a summary. beside: an earlier result file, from which the rows of sweeps that
    `state` does not hold are taken. Raises ValueError if there is no full sweep, or if `beside` is of another machine."""
    sweeps = [Sweep.read(path) for path in sorted(state.glob("*.npz"))]
    full = [sweep for sweep in sweeps if sweep.policy == "none"]
    if not full:
        raise ValueError(f"{state} holds no sweep that was trained in full; run `python -m benchmarks.quality sweep` first")
    live = {(sweep.pair, sweep.seed): sweep for sweep in sweeps if sweep.policy == OURS}
    rows = [row_of(sweep, live.get((sweep.pair, sweep.seed)), small) for sweep in full]
    for row in rows:
        row["commit"] = commit or current_commit()
    if beside is not None:
        rows = _merged(rows, json.loads(beside.read_text()), sweeps[0].machine)
    figures, gate = figures_of(rows), json.loads((state / "gate.json").read_text())
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        path = out / "quality.json"
        path.write_text(json.dumps({"gate": gate, "figures": figures, "rows": rows}, indent=1) + "\n")
    else:
        machines = {json.dumps(sweep.machine) for sweep in sweeps}
        if len(machines) > 1:
            raise ValueError(f"{state} holds sweeps of several machines or versions: {', '.join(sorted(machines))}")
        path = write_result("quality", gate, figures, rows, commit, machine=sweeps[0].machine)
        draw(rows, RESULTS / f"{path.stem}.svg")
    return f"{path}\n{json.dumps(figures, indent=1)}"


def _merged(rows: list[dict[str, Any]], earlier: dict[str, Any], machine: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows with those of an earlier result whose sweeps they lack, each with the commit that it was measured at."""
    if {name: earlier[name] for name in machine} != machine:
        raise ValueError(f"the earlier result is of {earlier['device']}, {earlier['versions']}, but the sweeps of {machine}")
    known = {(row["pair"], row["seed"]) for row in rows}
    others = [{"commit": earlier["commit"]} | row for row in earlier["rows"] if (row["pair"], row["seed"]) not in known]
    return sorted(rows + others, key=lambda row: (row["pair"], row["seed"]))


def row_of(sweep: Sweep, live: Sweep | None, small: bool) -> dict[str, Any]:
    """All results of one sweep."""
    pair = next(pair for pair in PAIRS if pair.name == sweep.pair)

    def spec(policy: str, **changes: Any) -> TaskSpec:
        return spec_of(pair, policy, sweep.seed, small, **changes)

    ours, _ = replay(spec(OURS), sweep)
    shown = replay_live(live, spec(OURS)) if live is not None else ours  # a replay lacks the means of jobs that ended early
    whole, full = replay(spec("none"), sweep)
    finalists = [e for e in full.entrants.values() if unseen(sweep, e) is not None]
    base = base_unseen(sweep)
    plain = [scores.mean for e in full.entrants.values() if (scores := plainly_unseen(sweep, e)) is not None]
    refs = _References(
        best_unseen(sweep, full),
        min(base.mean, *plain),
        base,
        min(full_loss(sweep, e) for e in full.entrants.values()),
    )
    peers = {
        "random": random_subset(sweep, full, shown.tokens),
        "asha": asha(spec(OURS), sweep, shown.tokens),
        "hyperband": hyperband(sweep, full, shown.tokens),
        "tpe": tpe(sweep, full, shown.tokens),
    }
    halved = halved_searches(spec(OURS), sweep)  # replays, as `ours`
    policies = {policy: ours if policy == OURS else replay(spec(policy), sweep, spec(OURS))[0] for policy in POLICIES}
    variants = (
        {name: replay(spec(**{"policy": OURS, **changes}), sweep, spec(OURS))[0] for name, changes in VARIANTS.items()}
        if pair.set.chooses
        else {}
    )
    rate = sweep.curves[min(finalists, key=lambda one: full_loss(sweep, one)).index].config["learning_rate"]
    rates = RATES[pair.set.objective]
    return {
        "pair": sweep.pair,
        "seed": sweep.seed,
        "held": not pair.set.chooses,
        "objective": pair.set.objective,
        "configurations": len(sweep.curves),
        "train_rows": sweep.train_rows,
        "validation_rows": sweep.validation_rows,
        "judged_rows": ours.selection.rows,
        "test_rows": sweep.test_rows,
        "full_tokens": sweep.tokens,
        "full_seconds": sweep.seconds,
        "best_rate": rate,
        "best_rate_inside": rates[0] < rate < rates[-1],
        "base_unseen": base.mean,
        "best_unseen": refs.best.mean,
        "best_unseen_plain": refs.plain,
        "policies": {policy: _told(one, sweep, refs) for policy, one in policies.items()},
        "full": _told(whole, sweep, refs),
        "live": _told(shown, live, refs) | {"seconds": live.seconds, "full_seconds": sweep.seconds} if live else None,
        "peers": {
            name: asdict(one) | {"x": min(one.unseen, base.mean) / used(over, base).mean}
            for found, over in ((peers, shown), (halved, ours))
            for name, one in found.items()
        },
        "variants": {name: _told(one, sweep, refs) for name, one in variants.items()},
        "rankings": [asdict(rank) for rank in rankings(sweep, full)],
        "redrawn": _redrawn(spec(OURS), spec("none"), sweep),
    }


def _redrawn(ours: TaskSpec, whole: TaskSpec, sweep: Sweep) -> dict[str, list[float]]:
    """Regrets by draw."""
    found = redrawn_regrets(ours, whole, sweep, DRAWS)
    return {"ours": [one for one, _ in found], "full": [one for _, one in found]}


def _told(one: Outcome, sweep: Sweep, refs: _References) -> dict[str, Any]:
    """An outcome as numbers."""
    assert one.test is not None, "a winner has finite losses"
    model, best, gain = used(one, refs.base), refs.best, refs.base.minus(one.test)
    low, high = model.minus(best).interval
    none = one.selection.beats_base is False
    return {
        "saved": one.saved,
        "saved_net": one.saved_net,
        "saved_by": one.saved_by,
        "evaluation_share": one.evaluation_share,
        "kept": one.kept,
        "winner": sweep.curves[one.winner].config,
        "winner_step": one.winner_step,
        "ratio": one.best_loss / refs.lowest,
        "unseen": one.test.mean,
        "regret": model.mean / best.mean,
        "regret_plain": model.mean / refs.plain,
        "regret_interval": [1 + low / best.mean, 1 + high / best.mean],
        "gain_unseen": [gain.mean, *gain.interval],
        "none_said": none,
        "none_wrong": none and gain.interval[0] > 0,
        "worse_than_base": not none and gain.mean <= 0,
        "verdict": one.selection.verdict,
    }


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The default policy's figures over all sweeps, and with the suffix _held over the sets that chose nothing."""
    held = [row for row in rows if row["held"]]
    named = {f"{name}_held": value for name, value in _figures(held).items()} if held else {}
    return {name: value for name, value in (_figures(rows) | named).items() if math.isfinite(value)}


def _figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    ours = [row["policies"][OURS] for row in rows]
    live = [row["live"] for row in rows if row["live"] is not None]
    shown = live or ours
    figures: dict[str, float] = {
        "pairs": len({row["pair"] for row in rows}),
        "sweeps": len(rows),
        "best_rate_inside": fmean(row["best_rate_inside"] for row in rows),
        "net_tokens_saved_mean": fmean(one["saved_net"] for one in ours),
        "evaluation_share_mean": fmean(one["evaluation_share"] for one in ours),
        "evaluation_share_max": max(one["evaluation_share"] for one in ours),
        "kept_mean": fmean(one["kept"] for one in ours),
        "regret_full_mean": fmean(row["full"]["regret"] for row in rows),
        "regret_full_median": median(row["full"]["regret"] for row in rows),
        "regret_full_max": max(row["full"]["regret"] for row in rows),
        "none_said": sum(one["none_said"] for one in shown),
        "none_wrong": sum(one["none_wrong"] for one in shown),
        "worse_than_base": sum(one["worse_than_base"] for one in shown),
        "spearman_at_5pct_mean": fmean(rank["spearman"] for row in rows for rank in row["rankings"] if rank["share"] == 0.05),
        "best_in_top_quartile": fmean(rank["best_kept"] for row in rows for rank in row["rankings"] if rank["share"] == 0.05),
    }
    for name, told in (("", shown), ("replay_", ours)):
        figures |= {
            f"{name}regret_mean": fmean(one["regret"] for one in told),
            f"{name}regret_median": median(one["regret"] for one in told),
            f"{name}regret_max": max(one["regret"] for one in told),
            f"{name}regret_plain_mean": fmean(one["regret_plain"] for one in told),
            f"{name}regret_plain_median": median(one["regret_plain"] for one in told),
            f"{name}regret_plain_max": max(one["regret_plain"] for one in told),
            f"{name}best_loss_ratio_mean": fmean(one["ratio"] for one in told),
            f"{name}best_loss_ratio_max": max(one["ratio"] for one in told),
        }
    for objective in ("sft", "dpo"):
        saved = [one["saved"] for row, one in zip(rows, ours, strict=True) if row["objective"] == objective]
        if saved:
            figures[f"samples_saved_{objective}_mean"] = fmean(saved)
    for reason in ("underperforming", "overfitting", "diverging"):
        figures[f"saved_by_{reason}_mean"] = fmean(one["saved_by"].get(reason, 0.0) for one in ours)
    for peer in ("random", "asha", "hyperband", "tpe"):
        figures[f"x_{peer}"] = fmean(row["peers"][peer]["x"] for row in rows)
    drawn = [row["redrawn"] for row in rows if "redrawn" in row]  # rows of before have none
    for name in ("ours", "full") if drawn else ():
        of_sweeps = [fmean(one[name]) for one in drawn]
        of_draws = [fmean(each) for each in zip(*(one[name] for one in drawn), strict=True)]
        figures[f"redrawn_regret_{name}_mean"], figures[f"redrawn_regret_{name}_max"] = fmean(of_sweeps), max(of_sweeps)
        figures[f"redrawn_regret_{name}_mean_se"] = stdev(of_draws) / len(of_draws) ** 0.5
    halved = [row["peers"] for row in rows if "tpe_rounds" in row["peers"]]
    if halved:
        figures["x_random_half"] = fmean(peers["random_half"]["x"] for peers in halved)
        figures["x_tpe_rounds"] = fmean(peers["tpe_rounds"]["x"] for peers in halved)
        figures["tpe_rounds_over_random_half"] = fmean(
            peers["tpe_rounds"]["unseen"] / peers["random_half"]["unseen"] for peers in halved
        )
    return figures
