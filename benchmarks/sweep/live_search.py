"""One search through the real executor, from its placement to its last adapter, over real HTTP. Judges nothing."""

import gc
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.quality.base_set_pairs import BATCH_SIZES, RANKS
from benchmarks.sweep.stopwatch import Stopwatch
from contract.early_exit_policy import EarlyExitPolicy
from contract.messages.placement_messages import BaseModelRef
from contract.messages.report_messages import JobFailed, Throughput
from contract.states import ExitReason
from contract.task_spec import Dataset
from tests.worker.fleet import Fleet
from tests.worker.inside import Inside
from tests.worker.placer import placer
from tests.worker.reported import Reported

RATES = (1e-5, 5e-5, 2e-4, 3e-4, 5e-4)  # ALTO A.4
EVALUATION_SHARE = EarlyExitPolicy().max_evaluation_share  # which the tests' placer leaves out
SPACE = {"learning_rate": list(RATES), "rank": list(RANKS), "batch_size": list(BATCH_SIZES)}  # 60 configurations


@dataclass(frozen=True)
class Live:
    """A search's results. samples: rows trained on, out of `samples_full` without any exit."""

    seconds: float
    watch: Stopwatch
    reported: Reported
    samples: int
    samples_full: int

    @property
    def saved(self) -> float:
        return 1 - self.samples / self.samples_full

    @property
    def fates(self) -> dict[str, int]:
        """Number of jobs by how they ended."""
        found: dict[str, int] = {}
        for event in self.reported.ended.values():
            name = str(getattr(event, "reason", event.kind))
            found[name] = found.get(name, 0) + 1
        return found

    @property
    def evaluation_tokens(self) -> int:
        return sum(event.evaluation_tokens for event in self.reported.of(Throughput))

    @property
    def evaluations(self) -> int:
        """Total number of evaluations over all jobs."""
        return sum(len(curve) for (_, series), curve in self.reported.curves.items() if series == "val_loss")

    @property
    def best_loss(self) -> float:
        ended = [event for event in self.reported.ended.values() if getattr(event, "reason", "") != ExitReason.UNDERPERFORMING]
        return min(event.best_val_loss for event in ended)


def held_out(rows: int) -> int:
    """How many validation rows go with so many training rows: what a data set holds out unless its task says otherwise."""
    known = Dataset.model_fields
    fraction: float = known["validation_fraction"].default
    most: int = known["max_validation_rows"].default
    return min(most, round(rows * fraction / (1 - fraction)))


def read_rows(path: Path, count: int) -> list[dict[str, Any]]:
    """The first rows of a file. Raises ValueError if it has fewer."""
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line][:count]
    if len(lines) < count:
        raise ValueError(f"{path} has {len(lines)} rows; {count} are wanted")
    return [json.loads(line) for line in lines]


def run_search(
    base: BaseModelRef,
    rows: list[dict[str, Any]],
    held: int,
    epochs: int,
    early_exit: dict[str, Any],
    folder: Path,
    device: str,
    **settings: Any,
) -> Live:
    """Place the 60 configurations on one executor and run all to their end: load, profile, train, evaluate, export, upload.

    held: how many of the rows validate. early_exit: what differs from the product's defaults.

    Raises RuntimeError if a job failed.
    """
    fleet, watch = Fleet(), Stopwatch()
    try:
        placement = placer(fleet, base)(
            SPACE,
            rows,
            dataset={"max_validation_rows": held, "validation_fraction": 0.5},
            training={"epochs": epochs, "max_seq_len": 512},
            early_exit={"max_evaluation_share": EVALUATION_SHARE, **early_exit},
        )
        inside = Inside(fleet, folder, worker_device=device, **settings)
        gc.collect()
        gc.freeze()  # as an executor's own process does
        began = time.monotonic()
        with watch.watching():
            (reported,) = inside.run(placement)
        seconds = time.monotonic() - began
    finally:
        gc.unfreeze()
        fleet.close()
    failed = reported.of(JobFailed)
    if failed or fleet.refused or len(reported.ended) != len(placement.jobs):
        raise RuntimeError(f"the search did not end well: {failed or fleet.refused or inside.ended}")
    sizes = {job.index: job.config.batch_size for job in placement.jobs}
    samples = sum(step * sizes[job] for job, step in reported.step.items())
    return Live(seconds, watch, reported, samples, len(placement.jobs) * epochs * (len(rows) - held))
