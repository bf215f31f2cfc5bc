"""Report over the finished sweeps: rows, figures, plot. Trains nothing."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.quality.base_set_pairs import PAIRS, RECOMMENDED, SEEN, spec_of, swept
from benchmarks.quality.readme_table import OURS
from benchmarks.quality.recorded_sweep import Curve, Sweep
from benchmarks.quality.replay import ASHA_FACTORS, ASHA_WARMUPS, Outcome, best_of, rankings, replay
from benchmarks.quality.sweep_plot import draw
from benchmarks.result_file import RESULTS, device_name, write_result
from contract.task_spec import TaskSpec

POLICIES = ("alto", "alto_guarded")


def report(state: Path, commit: str | None) -> str:
    """Write the result file and the plot; returns a summary. Raises ValueError if there is no full sweep."""
    sweeps = [_read(path) for path in sorted(state.glob("*-x*-*.json"))]
    full = [sweep for sweep in sweeps if sweep.policy == "none"]
    if not full:
        raise ValueError(f"{state} holds no sweep that was trained in full; run `python -m benchmarks.quality sweep` first")
    live = {(sweep.pair, sweep.scale, sweep.policy): sweep for sweep in sweeps if sweep.policy != "none"}
    rows = [row_of(sweep, live) for sweep in full]
    gate = json.loads((state / "gate.json").read_text())
    path = write_result("quality", gate, figures_of(rows), rows, commit)
    draw(rows, RESULTS / f"quality-{device_name()}.svg")
    return f"{path}\n{json.dumps(figures_of(rows), indent=1)}"


def _read(path: Path) -> Sweep:
    said = json.loads(path.read_text())
    curves = [Curve(**curve) for curve in said.pop("curves")]
    counts = {name: {int(job): value for job, value in said.pop(name).items()} for name in ("reasons", "samples")}
    return Sweep(**said, curves=curves, **counts)


def row_of(sweep: Sweep, live: Mapping[tuple[str, float, str], Sweep]) -> dict[str, Any]:
    """All results of one sweep."""
    pair = next(pair for pair in PAIRS if pair.name == sweep.pair)
    spec = spec_of(pair, sweep.scale, 1)
    epochs = round(sweep.curves[0].total_steps / math.ceil(sweep.train_rows / sweep.curves[0].config["batch_size"]))
    spec = spec.model_copy(update={"training": spec.training.model_copy(update={"epochs": epochs})})
    jobs = swept(spec.jobs())
    ours = {policy: replay(_with(spec, policy=policy), sweep, jobs, SEEN) for policy in POLICIES}
    asha = _asha(spec, sweep, jobs, ours[OURS].tokens)
    ranks = rankings(sweep, jobs, SEEN)
    at_5 = next(rank for rank in ranks if rank.share == 0.05)
    curves = {curve.job: curve for curve in sweep.curves}
    bests = {job: best_of(spec, sweep, curve, SEEN)[0] for job, curve in curves.items() if curve.steps}
    best = min(bests[job] for job in jobs)
    return {
        "pair": sweep.pair,
        "objective": pair.objective,
        "learning_rate_scale": sweep.scale,
        "configurations": len(jobs),
        "train_rows": sweep.train_rows,
        "epochs": epochs,
        "policy_rows": sum(sweep.parts[:SEEN]),
        "held_out_rows": sum(sweep.parts),
        "full_tokens": sweep.tokens,
        "full_seconds": sweep.seconds,
        "best_loss": best,
        "best_config": curves[min(jobs, key=lambda job: bests[job])].config,
        "policies": {policy: asdict(outcome) for policy, outcome in ours.items()},
        "live": {policy: _live(live[key], best) for policy in POLICIES if (key := (sweep.pair, sweep.scale, policy)) in live},
        "asha": {**asdict(asha), "x": asha.ratio / ours[OURS].ratio},
        "best_in_top_quartile": at_5.best_kept,
        "rankings": [asdict(rank) for rank in ranks],
        "recommended": {
            name: bests[len(jobs) + place] / best for place, name in enumerate(RECOMMENDED) if len(jobs) + place in bests
        },
        "grid": {str(job): round(bests[job], 5) for job in jobs if job in bests},
    }


def _with(spec: TaskSpec, **changes: Any) -> TaskSpec:
    return spec.model_copy(update={"early_exit": spec.early_exit.model_copy(update=changes)})


def _asha(spec: TaskSpec, sweep: Sweep, jobs: range, tokens: float) -> Outcome:
    """ASHA with the first rung and factor whose token count is closest."""
    tried = [
        replay(_with(spec, policy="asha", warmup_fraction=warmup, reduction_factor=eta), sweep, jobs, SEEN)
        for warmup in ASHA_WARMUPS
        for eta in ASHA_FACTORS
    ]
    return min(tried, key=lambda outcome: abs(math.log(outcome.tokens / tokens)))


def _live(sweep: Sweep, best: float) -> dict[str, float]:
    """The policy's outcome in the live run."""
    whole = sum(curve.total_steps * min(curve.config["batch_size"], sweep.train_rows) for curve in sweep.curves)
    kept = [curve for curve in sweep.curves if sweep.reasons[curve.job] != "underperforming"]
    return {
        "saved": 1 - sum(sweep.samples.values()) / whole,
        "ratio": min(curve.best(SEEN)[0] for curve in kept) / best,
        "seconds": sweep.seconds,
    }


def figures_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The default policy's figures."""
    ours = [row["policies"][OURS] for row in rows]
    sft = [said["saved"] for row, said in zip(rows, ours, strict=True) if row["objective"] == "sft"]
    dpo = [said["saved"] for row, said in zip(rows, ours, strict=True) if row["objective"] == "dpo"]
    figures = {
        "pairs": len(rows),
        "samples_saved_sft_mean": fmean(sft) if sft else None,
        "samples_saved_dpo": fmean(dpo) if dpo else None,
        "samples_saved_net_mean": fmean(said["saved_net"] for said in ours),
        "x_asha": fmean(row["asha"]["x"] for row in rows),
        "best_loss_ratio_mean": fmean(said["ratio"] for said in ours),
        "best_loss_ratio_max": max(said["ratio"] for said in ours),
        "best_loss_ratio_measured_mean": fmean(said["measured_ratio"] for said in ours),
        "best_in_top_quartile": fmean(row["best_in_top_quartile"] for row in rows),
        "spearman_at_5pct_mean": fmean(rank["spearman"] for row in rows for rank in row["rankings"] if rank["share"] == 0.05),
    }
    for policy in POLICIES:
        figures[f"{policy}_saved_mean"] = fmean(row["policies"][policy]["saved"] for row in rows)
        figures[f"{policy}_ratio_mean"] = fmean(row["policies"][policy]["ratio"] for row in rows)
        figures[f"{policy}_ratio_max"] = max(row["policies"][policy]["ratio"] for row in rows)
    return {name: value for name, value in figures.items() if value is not None}
