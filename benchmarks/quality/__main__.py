"""`python -m benchmarks.quality sweep|report`: trains sweeps in full and live, and reports what early exit did to them.

`sweep` trains as many of the requested sweeps as fit into `--minutes`, makes the second base first where it is wanted, and
writes each sweep to a file in `--state`; a second run goes on with the missing ones, and answers 3 while any is missing.
`report` reads the files, replays every policy and its peers, and writes the result file and the plot.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.quality import second_base
from benchmarks.quality.base_set_pairs import LLAMA, PAIRS, QWEN2, SECOND_SEED, Pair, spec_of
from benchmarks.quality.early_exit_driver import EarlyExitDriver
from benchmarks.quality.gate import run_gate
from benchmarks.quality.peers import asha_of
from benchmarks.quality.recorded_sweep import Sweep
from benchmarks.quality.replay import ASHA_FACTORS, ASHA_WARMUPS, watch_steps
from benchmarks.quality.report import OURS, POLICIES, report
from benchmarks.quality.sweep_training import OutOfTime, blank, ground_of, train
from benchmarks.result_file import this_machine
from contract.messages.placement_messages import BaseModelRef
from contract.model_revision import revision_of
from contract.task_spec import TaskSpec
from worker.replicas.base_loader import DeviceBase, load_base

EXAMPLE_BASE = Path(__file__).parents[2] / "examples" / "base-model"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    sweeping = actions.add_parser("sweep")
    sweeping.add_argument("--data", type=Path, required=True, help="the folder of the sets and texts")
    sweeping.add_argument("--pairs", default=",".join(pair.name for pair in PAIRS))
    sweeping.add_argument("--rows", type=int, help="at most, of a set, fewer than it says itself")
    sweeping.add_argument("--seeds", type=int, default=2, choices=(1, 2), help="2: a third of the pairs once more")
    sweeping.add_argument("--minutes", type=float, default=8.0)
    reporting = actions.add_parser("report")
    reporting.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    reporting.add_argument("--out", type=Path, help="the result file's folder; left out, benchmarks/results")
    reporting.add_argument("--beside", type=Path, help="an earlier result file, for sweeps that --state does not hold")
    for action in (sweeping, reporting):
        action.add_argument("--state", type=Path, required=True, help="the folder of finished sweeps")
        action.add_argument("--small", action="store_true", help="9 configurations, a tiny second base: to try it on a CPU")
    given = parser.parse_args()
    given.state.mkdir(parents=True, exist_ok=True)
    if given.action == "report":
        print(report(given.state, given.commit, given.small, given.out, given.beside))
    else:
        sys.exit(sweep(given, time.monotonic() + 60 * given.minutes))


def sweep(given: argparse.Namespace, deadline: float) -> int:
    """Train missing sweeps until the deadline. Returns 0 when none is missing."""
    names = given.pairs.split(",")
    unknown = set(names) - {pair.name for pair in PAIRS}
    if unknown:
        raise SystemExit(f"no such pair: {', '.join(sorted(unknown))}; there are {', '.join(pair.name for pair in PAIRS)}")
    wanted = [one for one in _wanted() if one[0].name in names and one[2] < given.seeds]
    for base_name in dict.fromkeys(pair.base for pair, _, _ in wanted):
        missing = [one for one in wanted if one[0].base == base_name and not _path(given.state, *one).exists()]
        if not missing:
            continue
        base = _base(base_name, given)
        for pair, policy, seed in missing:
            path = _path(given.state, pair, policy, seed)
            try:
                done = run_one(base, pair, policy, seed, given, _ticker(deadline))
            except OutOfTime:
                print(f"out of time in {path.stem}; run again to go on with it")
                return 3
            done.write(path)
            print(f"{path.stem}: {done.tokens:,} tokens in {done.seconds:.0f} s", flush=True)
    return 0


def _wanted() -> Iterator[tuple[Pair, str, int]]:
    """Every sweep: in full and live with the default policy; then a third of the pairs again with a second seed."""
    for seed, pairs in enumerate((PAIRS, [pair for pair in PAIRS if pair.name in SECOND_SEED])):
        for pair in pairs:
            for policy in ("none", OURS):
                yield pair, policy, seed


def _path(state: Path, pair: Pair, policy: str, seed: int) -> Path:
    return state / f"{pair.name}-{policy}-{seed}.npz"


def _base(name: str, given: argparse.Namespace) -> DeviceBase:
    """The base, loaded; made before if it is the second one. Runs the gate once, on the example base."""
    folder = EXAMPLE_BASE
    if name == QWEN2:
        folder = given.state / QWEN2
        second_base.make(given.data, folder, given.small)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    base = load_base(BaseModelRef(name=name, source=str(folder), revision=revision_of(folder)), device)
    gate = given.state / "gate.json"
    if name == LLAMA and not gate.exists():
        gate.write_text(json.dumps(run_gate(base, folder)) + "\n")
        _clear(base)
    return base


def _ticker(deadline: float) -> Callable[[], None]:
    def tick() -> None:
        if time.monotonic() > deadline:
            raise OutOfTime

    return tick


def run_one(base: DeviceBase, pair: Pair, policy: str, seed: int, given: argparse.Namespace, tick: Callable[[], None]) -> Sweep:
    """One sweep: in full with every evaluation that a policy or figure needs, live as the default policy evaluates."""
    spec = spec_of(pair, policy, seed, given.small)
    try:
        ground = ground_of(base, spec, pair.set, given.data, given.rows, tick, all_held_out=True)  # in the split's order
        made = blank(ground, pair.name, policy, seed, tick)
        made.machine = this_machine()
        driver = EarlyExitDriver(spec, made)
        train(ground, made, driver, _watched(pair, spec, policy, seed, given.small, made), tick)
    finally:
        _clear(base)
    return made


def _watched(pair: Pair, spec: TaskSpec, policy: str, seed: int, small: bool, made: Sweep) -> dict[int, set[int]]:
    """The steps of full training after which any policy that is replayed evaluates."""
    if policy != "none":
        return {}
    ours = spec_of(pair, OURS, seed, small)
    asha = [asha_of(ours, warmup, eta) for warmup in ASHA_WARMUPS for eta in ASHA_FACTORS]
    others = [spec_of(pair, one, seed, small) for one in POLICIES if one != OURS]
    specs = [(spec, None), (ours, None), *((one, ours) for one in (*asha, *others))]
    return {curve.job: watch_steps(specs, curve.job, made.train_rows) for curve in made.curves}


def _clear(base: DeviceBase) -> None:
    """Remove every adapter from the arena, also after an interrupted sweep."""
    for slot in base.trainer.arena.slots:
        base.trainer.arena.detach(slot)


if __name__ == "__main__":
    main()
