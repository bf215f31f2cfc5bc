"""What running tasks lose while a neighbour's rows are read.

    python -m benchmarks.beside_rows [--rows 30000] [--tasks 1 8] [--shape 1b] [--device cuda] [--commit HASH]

Tasks of batch 2 train on one warm executor (benchmarks.sharing). Then a task of another tenant joins whose file, chat rows made
from GSM8K, was never read there. Measured are the steps a second until its rows are tokenised, by the reports, beside those of
the seconds before; three times for each number of tasks, with a file of its own each time. The gate compares the losses of one
that had such neighbours with those of the same task alone.
"""

import argparse
import itertools
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.sharing import (
    ROWS,
    WARM_STEPS,
    Measured,
    WarmExecutor,
    gate_of,
    losses_of,
    said,
    tasks_of,
    twin,
    write_measured,
)
from benchmarks.sweep.live_search import read_rows
from contract.messages.placement_messages import BaseModelRef, Placement
from contract.messages.report_messages import Report
from tests.worker.fleet import Fleet
from tests.worker.placer import placer
from tests.worker.reported import Reported
from worker.data import token_cache

TIMES = 3
WINDOW_SECONDS = 6.0
ENDLESS = 7000  # steps: more than are taken, about 40 s of the 1B shape
COMPARED = 300  # steps that the gate waits for
PATIENCE_SECONDS = 600.0


class Pace:
    """How fast placements step, by the times at which their reports come; and when rows have been tokenised, by the log."""

    def __init__(self, fleet: Fleet, now: Callable[[], float] = time.monotonic) -> None:
        self._fleet, self._now = fleet, now
        self._reports = defaultdict[str, list[tuple[float, int]]](list)
        self._changed = threading.Condition()
        self._tokenised = threading.Event()
        self.seconds = 0.0  # that the last file took
        fleet.on_report = self._heard
        self._said = logging.Handler(logging.INFO)
        self._said.emit = self._noted  # type: ignore[method-assign]
        self._logger = logging.getLogger(token_cache.__name__)
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self._said)

    def close(self) -> None:
        self._logger.removeHandler(self._said)

    def wait_for_steps(self, keys: list[str], steps: int) -> None:
        """Until each has taken so many. Raises RuntimeError where that takes too long, with what the fleet refused."""
        with self._changed:
            if not self._changed.wait_for(lambda: all(self._steps(key) >= steps for key in keys), PATIENCE_SECONDS):
                raise RuntimeError(f"no {steps} steps in {PATIENCE_SECONDS:g} s; refused: {self._fleet.refused or 'nothing'}")

    def expect_rows(self) -> None:
        """The next file that is read is the one to wait for."""
        self._tokenised.clear()

    def wait_for_rows(self) -> None:
        if not self._tokenised.wait(PATIENCE_SECONDS):
            raise RuntimeError(f"the rows were not tokenised in {PATIENCE_SECONDS:g} s")

    def a_second(self, keys: list[str], since: float, until: float) -> float:
        """Steps a second of all of them together. Raises RuntimeError where one reported less than twice."""
        total = 0.0
        for key in keys:
            within = [(at, step) for at, step in self._reports[key] if since <= at <= until]
            if len(within) < 2:
                raise RuntimeError(f"{key} reported {len(within)} times in {until - since:.1f} s: give more rows")
            (began, first), (ended, last) = within[0], within[-1]
            total += (last - first) / (ended - began)
        return total

    def _steps(self, key: str) -> int:
        return self._reports[key][-1][1] if self._reports[key] else 0

    def _heard(self, reported: Reported, report: Report) -> None:
        with self._changed:
            self._reports[reported.placement.placement_id].append((self._now(), reported.step[0]))
            self._changed.notify_all()

    def _noted(self, record: logging.LogRecord) -> None:
        if "are tokenised" in record.msg and isinstance(record.args, tuple):
            self.seconds = float(str(record.args[-1]))
            self._tokenised.set()


class Neighbours:
    """Tasks of a tenant of their own, each with a file of so many chat rows that no other has."""

    def __init__(self, fleet: Fleet, base: BaseModelRef, rows: int) -> None:
        self._place, self._numbers, self._rows = placer(fleet, base), itertools.count(), rows
        self._known = read_rows(ROWS, 500)

    def next(self) -> Placement:
        number = next(self._numbers)
        rows = [self._row(f"{number}.{at}", at) for at in range(self._rows)]
        made = self._place(
            {"learning_rate": [1e-4], "rank": [16], "batch_size": [2]},
            rows,
            dataset={"max_validation_rows": 8},
            training={"max_steps": 8, "max_seq_len": 512},
            early_exit={"policy": "none", "eval_every": 8},
        )
        key = f"neighbour{number}"
        return twin(made, key).model_copy(update={"tenant_id": key})

    def _row(self, name: str, at: int) -> dict[str, Any]:
        asked, *rest = self._known[at % len(self._known)]["messages"]
        return {"messages": [{**asked, "content": f"{name}: {asked['content']}"}, *rest]}


def measure(given: argparse.Namespace, fleet: Fleet, base: BaseModelRef, folder: Path) -> Measured:
    make, neighbours = tasks_of(fleet, base), Neighbours(fleet, base, given.rows)
    executor, pace = WarmExecutor(fleet, folder / "executor", given.device), Pace(fleet)
    figures, rows = dict[str, float](), list[dict[str, Any]]()
    try:
        executor.run(make(1, WARM_STEPS, None), 1)  # loads the base and compiles
        for count in given.tasks:
            found = list[dict[str, float]]()
            for _ in range(TIMES):
                tasks = make(count, ENDLESS, None)
                told = _start(executor, fleet, pace, tasks)
                found.append(_beside(executor, fleet, pace, [task.placement_id for task in tasks], neighbours.next()))
                _stop(executor, tasks)
            rows += [said({"tasks": count, "rows": given.rows, **one}) for one in found]
            figures[f"slower_{count}"] = median(one["slower"] for one in found)
        figures["us_a_row"] = median(1e6 * row["tokenise_s"] / row["rows"] for row in rows)
        alone = twin(tasks[0], "alone")
        (told_alone,) = _start(executor, fleet, pace, [alone], COMPARED)
        _stop(executor, [alone])
    finally:
        executor.close()
        pace.close()
    pairs = list(zip(losses_of(told_alone), losses_of(told[0]), strict=False))  # the two were stopped at different steps
    return figures, rows, gate_of([a for a, _ in pairs], [b for _, b in pairs])


def _start(executor: WarmExecutor, fleet: Fleet, pace: Pace, tasks: list[Placement], steps: int = WARM_STEPS) -> list[Reported]:
    """Attach them, and wait until each has taken so many steps."""
    told = [fleet.place(task) for task in tasks]
    for task in tasks:
        executor.attach(task)
    pace.wait_for_steps([task.placement_id for task in tasks], steps)
    return told


def _stop(executor: WarmExecutor, tasks: list[Placement]) -> None:
    for task in tasks:
        executor.detach(task.placement_id)
    for _ in tasks:
        executor.next_end()


def _beside(executor: WarmExecutor, fleet: Fleet, pace: Pace, keys: list[str], neighbour: Placement) -> dict[str, float]:
    """One neighbour: steps a second before and while its rows are read."""
    before = time.monotonic()
    time.sleep(WINDOW_SECONDS)  # what is measured
    fleet.place(neighbour)
    pace.expect_rows()
    attached = time.monotonic()
    executor.attach(neighbour)
    pace.wait_for_rows()
    read = time.monotonic()
    alone, beside = pace.a_second(keys, before, attached), pace.a_second(keys, attached, read)
    assert executor.next_end() == neighbour.placement_id
    return {"alone_steps_s": alone, "beside_steps_s": beside, "slower": alone / beside, "tokenise_s": pace.seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=30_000, help="of each neighbour's file")
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 8], help="that train beside it")
    write_measured("beside_rows", parser, measure)


if __name__ == "__main__":
    main()
