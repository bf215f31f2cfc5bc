"""`python -m benchmarks.quality sweep|report`: trains sweeps in full and live, and reports what early exit did to them.

`sweep` trains as many of the requested sweeps as fit into `--minutes` and writes each to a file in `--state`; a second run
continues with the missing ones. `report` reads the files, replays every policy, and writes the result file and the plot.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.quality.base_set_pairs import PAIRS, SEEN, Pair, rows_of, spec_of, swept
from benchmarks.quality.early_exit_driver import Referee
from benchmarks.quality.gate import run_gate
from benchmarks.quality.recorded_sweep import Curve, OutOfTime, Sweep, split, train
from benchmarks.quality.replay import watch_steps
from benchmarks.quality.report import report
from contract.messages.placement_messages import BaseModelRef
from contract.model_revision import revision_of
from contract.task_spec import Schedule
from worker.data.dataset import load
from worker.replicas.base_loader import Base, load_base

STEP_TOKENS = {"cpu": 4096, "cuda": 65536}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    sweeping = actions.add_parser("sweep")
    sweeping.add_argument("--model", type=Path, required=True, help="the base's folder")
    sweeping.add_argument("--data", type=Path, required=True, help="the folder of the sets")
    sweeping.add_argument("--pairs", default=",".join(pair.name for pair in PAIRS))
    sweeping.add_argument("--scales", default="1", help="what ALTO's learning rates are multiplied by")
    sweeping.add_argument("--policies", default="none,alto,alto_guarded", help="none: in full; others live")
    sweeping.add_argument("--epochs", type=int, default=3)
    sweeping.add_argument("--rows", type=int, help="at most, of a set, fewer than it says itself; drawn with a fixed seed")
    sweeping.add_argument("--minutes", type=float, default=8.0)
    reporting = actions.add_parser("report")
    reporting.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    for action in (sweeping, reporting):
        action.add_argument("--state", type=Path, required=True, help="the folder of finished sweeps")
    given = parser.parse_args()
    given.state.mkdir(parents=True, exist_ok=True)
    if given.action == "report":
        print(report(given.state, given.commit))
    else:
        sys.exit(sweep(given, time.monotonic() + 60 * given.minutes))


def sweep(given: argparse.Namespace, deadline: float) -> int:
    """Train missing sweeps until the deadline. Returns 0 when none is missing."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    base = load_base(BaseModelRef(name="base", source=str(given.model), revision=revision_of(given.model)), device)
    gate = given.state / "gate.json"
    if not gate.exists():
        gate.write_text(json.dumps(run_gate(base, given.model)) + "\n")
    names = given.pairs.split(",")
    wanted = [
        (pair, float(scale), policy)
        for policy in given.policies.split(",")
        for scale in given.scales.split(",")
        for pair in PAIRS
        if pair.name in names
    ]
    for pair, scale, policy in wanted:
        path = given.state / f"{pair.name}-x{scale:g}-{policy}.json"
        if path.exists():
            continue
        try:
            done = run_one(base, pair, scale, policy, given, _ticker(deadline))
        except OutOfTime:
            print(f"out of time in {path.stem}; run again to go on with it")
            return 3
        path.write_text(json.dumps(done.document()) + "\n")
        print(f"{path.stem}: {done.tokens:,} tokens in {done.seconds:.0f} s", flush=True)
    return 0


def _ticker(deadline: float) -> Callable[[], None]:
    def tick() -> None:
        if time.monotonic() > deadline:
            raise OutOfTime

    return tick


def run_one(base: Base, pair: Pair, scale: float, policy: str, given: argparse.Namespace, tick: Callable[[], None]) -> Sweep:
    """One sweep: in full with every evaluation that a policy or figure needs, live as the policy evaluates."""
    spec = spec_of(pair, scale, given.epochs, policy)
    with tempfile.TemporaryDirectory() as folder:
        data = load(spec, rows_of(pair, given.data, Path(folder), given.rows), None, base.reader)
    parts = split(data.validation, pair.edges)
    configs, full = spec.jobs(), policy == "none"
    jobs = range(len(configs)) if full else swept(configs)
    seen = parts if full else parts[:SEEN]  # a live sweep reads only the rows that its policy sees
    weights = [float(len(rows) if pair.objective == "dpo" else sum(e.labels for e in rows.sequences)) for rows in seen]
    calendars = {job: Schedule.of(spec, configs[job], len(data.train)) for job in jobs}
    made = Sweep(
        pair=pair.name,
        scale=scale,
        policy=policy,
        train_rows=len(data.train),
        parts=[len(rows) for rows in parts],
        part_tokens=[sum(rows.lengths) for rows in parts],
        tokens_per_row=data.train.mean_length,
        curves=[Curve(job, configs[job].model_dump(mode="json"), calendars[job].total_steps, weights) for job in jobs],
    )
    watched = {job: watch_steps(calendars[job].total_steps) if full else () for job in jobs}
    budget = STEP_TOKENS[base.trainer.backbone.device.type]
    referee = Referee(spec, len(data.train), jobs)
    try:
        train(base, spec, data, made, referee, watched, seen, SEEN, budget, tick)
    finally:
        _clear(base)
    return made


def _clear(base: Base) -> None:
    """Remove every adapter from the arena, also after an interrupted sweep."""
    for slot in base.trainer.arena.slots:
        base.trainer.arena.detach(slot)


if __name__ == "__main__":
    main()
