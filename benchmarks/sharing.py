"""Tasks of several tenants on one warm executor: all at once, against one after another.

    python -m benchmarks.sharing [--seconds-alone 60] [--at-once 16 32] [--shape 1b] [--device cuda] [--commit HASH]

The real executor over real HTTP with its default settings; random weights of the 1B shape, read from a folder. Each task has
one job of batch 2, rank 16, its own tenant and its own learning rate; its steps are chosen to last so long alone. The gate
compares the losses of a task alone and in the fullest company. A row has these differences by tenths of the steps, and beside
them what rounding does: those of the same task alone with a learning rate that is a millionth higher. `bound_4` keeps as many
tasks at once as a slowdown of 4 allows by the slowdowns measured before, and gives each placement that bound.
"""

import argparse
import itertools
import logging
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.llama_shapes import LLAMA_1B, LlamaShape
from benchmarks.result_file import write_result
from benchmarks.sweep.live_search import read_rows
from benchmarks.sweep.random_base import write_base
from contract.messages.placement_messages import BaseModelRef, Placement
from contract.messages.report_messages import JobFailed, Throughput
from tests.worker.fleet import JOIN_TOKEN, Fleet
from tests.worker.placer import placer
from tests.worker.reported import Reported
from worker.api_client import PlacementLink
from worker.boot_clock import boot_now
from worker.executor.training_loop import Executor
from worker.pipe_messages import Attach, Detach, ExecutorProgress, PlacementEnded, Stop
from worker.settings import Settings
from worker.stepping_process import settle

ROWS = Path(__file__).parent.parent / "examples" / "gsm8k" / "train.jsonl"
SHAPES = {"1b": LLAMA_1B, "toy": LlamaShape(2, 64, 128, 4, 2, 16, 8000, True)}
ALONE = 3  # tasks measured one after another
WARM_STEPS = 60
HELD_OUT, TRAINED = 8, 242  # rows of a task: steps of a minute are fewer than the 100 epochs that a task may have
RATE = 2e-5  # so small that losses of ten thousand steps do not come near 0, where rounding is all that is left of them
BOUND = 4.0
Measured = tuple[dict[str, float], list[dict[str, Any]], dict[str, Any]]  # figures, rows, the gate
Measure = Callable[[argparse.Namespace, Fleet, BaseModelRef, Path], Measured]
NUDGE = 1e-6  # of a learning rate: less than any product in bf16 tells apart
TOLERANCE = 0.02  # relative mean difference of losses, as docs/NUMERICS.md has for packed and solo steps on a GPU


@dataclass(frozen=True)
class Finished:
    """A task from its attach to its end; `first_step`: seconds until its first optimizer step."""

    reported: Reported
    seconds: float
    first_step: float

    @property
    def losses(self) -> list[float]:
        return losses_of(self.reported)

    @property
    def step_ms(self) -> float:
        """Of the executor's steps that it had a part in."""
        done = self.reported.of(Throughput)
        return 1e3 * sum(one.seconds for one in done) / sum(one.steps for one in done)


class WarmExecutor:
    """One executor that runs as long as the benchmark, fed with placements as earlier ones end."""

    def __init__(self, fleet: Fleet, folder: Path, device: str) -> None:
        self._fleet, self._ended = fleet, queue.SimpleQueue[str]()
        self._first_steps: dict[str, float] = {}
        settings = Settings(api_url=fleet.url, join_token=JOIN_TOKEN, worker_dir=folder, worker_device=device)  # type: ignore[arg-type]
        self._link = PlacementLink(fleet.url)
        self._executor = Executor(settings, self._link, self._told)
        self._thread = threading.Thread(target=self._executor.run, name="training loop", daemon=True)
        steps = logging.getLogger("worker.executor.placement.placement_run")
        steps.setLevel(logging.INFO)
        steps.addHandler(_FirstSteps(self._first_steps))
        self._thread.start()

    def run(self, placements: Sequence[Placement], at_once: int) -> tuple[float, list[Finished]]:
        """Run them all, never more than so many at a time. Returns the seconds of the whole, and each task's own.

        Raises RuntimeError if a job failed.
        """
        waiting, began, ended = list(placements), dict[str, float](), dict[str, float]()
        reported = {placement.placement_id: self._fleet.place(placement) for placement in placements}
        start = time.monotonic()
        while len(ended) < len(placements):
            while waiting and len(began) - len(ended) < at_once:
                placement = waiting.pop(0)
                began[placement.placement_id] = time.monotonic()
                self.attach(placement)
            placement_id = self.next_end()
            ended[placement_id] = time.monotonic()
        failed = [event for one in reported.values() for event in one.of(JobFailed)]
        if failed or self._fleet.refused or any(not one.ended for one in reported.values()):
            raise RuntimeError(f"not every task came to its end: {failed or self._fleet.refused}")
        found = [Finished(reported[key], ended[key] - began[key], self._first_steps[key]) for key in reported]
        return time.monotonic() - start, found

    def attach(self, placement: Placement) -> None:
        self._executor.handle_command(Attach(placement=placement, deadline=boot_now() + placement.lease_seconds))

    def detach(self, placement_id: str) -> None:
        """As where the service has ended it."""
        self._executor.handle_command(Detach(placement_id=placement_id))

    def next_end(self) -> str:
        """Waits until a placement ends; its id."""
        return self._ended.get(timeout=900)

    def close(self) -> None:
        self._executor.handle_command(Stop(seconds=0))
        self._thread.join()
        self._link.__exit__(None, None, None)

    def _told(self, news: ExecutorProgress | PlacementEnded) -> None:
        if isinstance(news, PlacementEnded):
            self._ended.put(news.placement_id)


class _FirstSteps(logging.Handler):
    """Reads from the executor's log how long after its attach each placement took its first step."""

    def __init__(self, into: dict[str, float]) -> None:
        super().__init__(logging.INFO)
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.endswith("first optimizer step %.3f s after attach") and isinstance(record.args, tuple):
            placement, seconds = record.args
            self._into[str(placement)] = float(str(seconds))


def tasks_of(fleet: Fleet, base: BaseModelRef) -> Callable[[int, int, float | None], list[Placement]]:
    """Makes so many tasks of so many steps, each of a tenant of its own, with this bound."""
    place, numbers = placer(fleet, base), itertools.count()
    data = read_rows(ROWS, HELD_OUT + TRAINED)

    def make(count: int, steps: int, bound: float | None) -> list[Placement]:
        made = []
        for number in itertools.islice(numbers, count):
            placement = place(
                {"learning_rate": [RATE * (1 + number % 32 / 100)], "rank": [16], "batch_size": [2]},
                data,
                dataset={"max_validation_rows": HELD_OUT, "validation_fraction": 0.1},
                training={"epochs": -(-2 * steps // TRAINED), "max_steps": steps, "max_seq_len": 512},
                early_exit={"policy": "none", "eval_every": steps},
            )
            made.append(placement.model_copy(update={"tenant_id": f"tenant_{number}", "max_slowdown": bound}))
        return made

    return make


def twin(placement: Placement, key: str) -> Placement:
    """The same task once more."""
    return placement.model_copy(update={"placement_id": key, "token": f"token-{key}"})


def nudged(placement: Placement, key: str) -> Placement:
    """The same task with a learning rate that is higher by NUDGE."""
    (job,) = placement.jobs
    config = job.config.model_copy(update={"learning_rate": job.config.learning_rate * (1 + NUDGE)})
    return twin(placement, key).model_copy(update={"jobs": [job.model_copy(update={"config": config})]})


def measure(given: argparse.Namespace, fleet: Fleet, base: BaseModelRef, folder: Path) -> Measured:
    make = tasks_of(fleet, base)
    executor = WarmExecutor(fleet, folder / "executor", given.device)
    try:
        executor.run(make(1, WARM_STEPS, None), 1)  # loads the base and compiles
        steps = WARM_STEPS
        for part in (0.1, 1.0):  # a short task's steps are slower on average: its first ones capture graphs
            _, (warm,) = executor.run(make(1, steps, None), 1)
            steps = max(WARM_STEPS, round(part * given.seconds_alone * 1e3 / warm.step_ms))
        tasks = make(ALONE, steps, None)
        _, solo = executor.run(tasks, 1)
        alone = median(one.seconds for one in solo)
        rows = [said(_row("one after another", steps, alone * ALONE, solo, alone))]
        figures = {"step_ms_1": median(one.step_ms for one in solo)}
        at_slowdown, company = {1: 1.0}, solo
        for count in given.at_once:
            executor.run(make(count, WARM_STEPS, None), count)  # captures passes of this size
            crowd = [twin(tasks[0], f"twin{count}"), *make(count - 1, steps, None)]
            seconds, company = executor.run(crowd, count)
            figures[f"x_{count}"] = count * alone / seconds
            figures[f"step_ms_{count}"] = median(one.step_ms for one in company)
            at_slowdown[count] = max(one.seconds for one in company) / alone
            rows.append(said(_row(f"{count} at once", steps, seconds, company, alone)))
        _, (control,) = executor.run([nudged(tasks[0], "nudged")], 1)
        gate = gate_of(solo[0].losses, company[0].losses)
        differences = {"in company": _by_tenths(solo[0], company[0]), "nudged": _by_tenths(solo[0], control)}
        rows.append(said({"what": "losses differ from those alone, by tenths of the steps", **differences}))
        first = min(given.at_once)
        width = max(1, min(first, int(1 + (BOUND - 1) * (first - 1) / max(1e-9, at_slowdown[first] - 1))))
        executor.run(make(width, WARM_STEPS, None), width)  # likewise
        seconds, bounded = executor.run(make(2 * width, steps, BOUND), width)
        rows.append(said(_row(f"bound {BOUND:g}: {2 * width} tasks, {width} at a time", steps, seconds, bounded, alone)))
        figures["x_bound_4"] = 2 * width * alone / seconds
        figures["worst_slowdown_bound_4"] = max(one.seconds for one in bounded) / alone
        figures["tasks_at_a_time_bound_4"] = float(width)
        figures["attach_s"] = median(one.first_step for one in (*solo, *bounded))
    finally:
        executor.close()
    return figures, rows, gate


def _row(what: str, steps: int, seconds: float, tasks: Sequence[Finished], alone: float) -> dict[str, Any]:
    own = sorted(one.seconds for one in tasks)
    return {
        "what": what, "tasks": len(tasks), "steps": steps, "seconds": seconds, "of_a_task": [own[0], median(own), own[-1]],
        "slowdown": [value / alone for value in (own[0], median(own), own[-1])],
        "step_ms": median(one.step_ms for one in tasks),
        "first_step_s": [pick(one.first_step for one in tasks) for pick in (min, median, max)],
    }  # fmt: skip


def gate_of(alone: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """The same task's losses, alone and in company."""
    error = mean_difference(alone, other)
    return {
        "tolerance": TOLERANCE,
        "worst_error": error,
        "compared": f"{len(alone)} training losses",
        "passed": error < TOLERANCE,
    }


def _by_tenths(alone: Finished, other: Finished) -> list[float]:
    cuts = [len(alone.losses) * tenth // 10 for tenth in range(11)]
    return [mean_difference(alone.losses[a:b], other.losses[a:b]) for a, b in itertools.pairwise(cuts)]


def mean_difference(alone: Sequence[float], other: Sequence[float]) -> float:
    """Their mean difference over the mean loss alone."""
    return sum(abs(a - b) for a, b in zip(alone, other, strict=True)) / sum(alone)


def losses_of(reported: Reported) -> list[float]:
    """Of its first job's training, step by step."""
    return [float(value or 0.0) for value in reported.curves[0, "train_loss"].values()]


def said(row: dict[str, Any]) -> dict[str, Any]:
    print(row, flush=True)
    return row


def write_measured(name: str, parser: argparse.ArgumentParser, measure: Measure) -> None:
    """Run `measure` on a fleet and a random base in a folder, as the command line says, and write its result file."""
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", help="the commit that is measured, where there is no checkout")
    given = parser.parse_args()
    settle()  # as an executor's process does
    with tempfile.TemporaryDirectory(prefix=f"motet-{name}-") as made:
        folder, fleet = Path(made), Fleet()
        try:
            base = write_base(SHAPES[given.shape], folder / "base", torch.device(given.device))
            figures, rows, gate = measure(given, fleet, base, folder)
        finally:
            fleet.close()
    print(figures, gate, flush=True)
    write_result(name, gate, figures, rows, given.commit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds-alone", type=float, default=60.0, help="of each task")
    parser.add_argument("--at-once", type=int, nargs="+", default=[16, 32])
    write_measured("sharing", parser, measure)


if __name__ == "__main__":
    main()
