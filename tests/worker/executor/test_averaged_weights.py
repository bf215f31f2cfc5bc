"""The adapter of a job that ends: the mean of its best weights where that has a lower validation loss, else the best."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from contract.job_schedule import JobSchedule
from contract.messages.report_messages import AdapterKept
from tests.worker.corpus import rows
from tests.worker.inside import Inside
from worker.adapters.arena_adapters import ArenaAdapters
from worker.adapters.peft_export import export_peft
from worker.executor.evaluation.job_evaluations import JobEvaluations, Settled
from worker.executor.placement.job_run import JobRun
from worker.policy.job_record import AVERAGED, Best, BestEvaluated, JobKey, JobProgress, JobRecord, Stage

NOISY = {"learning_rate": [3e-2, 1e-2], "rank": [4], "batch_size": [2]}


@pytest.mark.usefixtures("measured_once")
@pytest.mark.parametrize("share", [None, 0.3])
def test_a_noisy_job_keeps_the_mean_of_its_best_weights(fleet, placing, tmp_path, monkeypatch, share):
    """share: None has every evaluation read all validation rows."""
    noted: dict[tuple[JobKey, int], torch.Tensor] = {}
    note, layouts = ArenaAdapters.note_lowest, []

    def watched(self, key, place, most):
        note(self, key, place, most)
        layouts.append(self._trainer.arena.layout)
        noted[key, len(noted)] = self.mean_weights(key, 1) if place == 0 else self._held[key].copies[place].read()

    monkeypatch.setattr(ArenaAdapters, "note_lowest", watched)
    early_exit = {"policy": "none", "eval_every": 10, "max_evaluation_share": share}
    placement = placing(NOISY, rows(120), dataset={"validation_fraction": 0.3}, training={"epochs": 4}, early_exit=early_exit)
    (reported,) = Inside(fleet, tmp_path / "node").run(placement)
    kept = reported.of(AdapterKept)
    assert any(event.manifest.averaged_steps for event in kept), "a high rate ends in noise, which a mean evens out"
    for event in kept:
        curve = reported.curves[event.job, "val_loss"]
        lowest = sorted(curve, key=curve.get)[:AVERAGED]
        assert event.manifest.step == reported.ended[event.job].best_step == lowest[0]
        if not event.manifest.averaged_steps:
            continue
        assert event.manifest.averaged_steps == tuple(sorted(lowest))
        assert event.scores.mean == pytest.approx(event.manifest.val_loss)
        if share is None:
            assert event.manifest.val_loss < min(curve.values())
        assert stored(event, fleet) == exported(event, placement, noted, layouts[0], lowest, curve, tmp_path)


def test_a_job_keeps_its_best_weights_alone_up_to_the_end_of_its_warmup(placing):
    placement = placing(NOISY, early_exit={"policy": "alto", "warmup_fraction": 0.25})
    schedule = JobSchedule.of(placement.spec, placement.jobs[0].config, 36)
    (boundary, *_) = schedule.rungs

    def kept(step: int) -> int:
        record = JobRecord(Stage.TRAINING, progress=JobProgress(step=step))
        return JobRun("job_0", SimpleNamespace(key=JobKey("p", 0)), placement.spec, schedule, record).most_averaged

    assert [kept(step) for step in (1, boundary, boundary + 1)] == [1, 1, AVERAGED]


def stored(event: AdapterKept, fleet) -> dict[str, bytes]:
    return {file.path: fleet.objects[file.sha256] for file in event.manifest.files}


def exported(event, placement, noted, layout, lowest, curve, folder: Path) -> dict[str, bytes]:
    """The files of the mean of what was noted at these steps. Notes come in the order of the job's lowest losses so far."""
    entered, among = [], list[int]()
    for step in curve:
        among = sorted([*among, step], key=curve.get)[:AVERAGED]
        entered += [step] if step in among else []
    own = [weights for (key, _), weights in noted.items() if key.job == event.job]
    at = dict(zip(entered, own, strict=True))
    mean = (at[lowest[0]] + at[lowest[1]] + at[lowest[2]]) / AVERAGED
    config, into = event.manifest.lineage.config, folder / f"job{event.job}"
    into.mkdir()
    paths = export_peft(into, layout.targets, layout.split(mean), config=config, base_model=placement.base.name)
    return {path.name: path.read_bytes() for path in paths}


class Run:
    """A job that ends, as far as its evaluations ask."""

    def __init__(self, losses: list[float], trend_is_all: bool) -> None:
        self.key, self.stage, self.trend_is_all = JobKey("p", 0), None, trend_is_all
        self.progress = JobProgress(step=9, lowest=tuple(Best(step, loss) for step, loss in enumerate(losses, 1)))
        self.full_evaluation_at_boundary, self.full, self.changes = None, [], []

    @property
    def best(self) -> Best | None:
        return self.progress.best

    def evaluation_request(self, full: bool) -> bool:
        return full or self.trend_is_all

    def apply(self, change: object) -> None:
        self.changes.append(change)


def settled(run: Run, losses: list[float | None]) -> tuple[Settled, list[Any]]:
    """What is settled where evaluations find these losses (None: no memory), and what was asked: means restored, parts read."""
    asked: list[Any] = []
    found = iter(losses)

    def evaluate(requests, on_progress):
        asked.append("all" if requests[run.key] else "trend")
        loss = next(found)
        result = SimpleNamespace(loss=loss, part=None, tokens=1, scores=f"scores of {loss}")
        return ({}, {run.key: "no memory"}) if loss is None else ({run.key: result}, {})

    store = SimpleNamespace(
        lost={}, restore_mean=lambda key, count: asked.append(count) or True, mean_weights=lambda key, count: f"mean of {count}"
    )
    tasks: Any = {"p": SimpleNamespace(count_evaluation=lambda *_: None)}
    evaluations = JobEvaluations(tasks, lambda: None, lambda *_: None)
    return evaluations.settle_best(SimpleNamespace(evaluate=evaluate, store=store), run, None), asked


@pytest.mark.parametrize(
    ("losses", "trend_is_all", "found", "expected", "asked"),
    [
        ([2.0, 2.1, 2.2], False, [1.9, 2.4], ("mean of 3", (1, 2, 3), "scores of 2.4"), [3, "trend", "all"]),
        ([2.0, 2.1, 2.2], True, [1.9], ("mean of 3", (1, 2, 3), "scores of 1.9"), [3, "all"]),
        ([2.0, 2.1], False, [1.9, 2.4], ("mean of 2", (1, 2), "scores of 2.4"), [2, "trend", "all"]),
        ([2.0, 2.1, 2.2], False, [2.0, 2.4], ("mean of 1", (), "scores of 2.4"), [3, "trend", 1, "all"]),
        ([2.0, 2.1, 2.2], True, [2.1, 2.0], ("mean of 1", (), "scores of 2.0"), [3, "all", 1, "all"]),
        ([2.0, 2.1, 2.2], False, [math.nan, 2.4], ("mean of 1", (), "scores of 2.4"), [3, "trend", 1, "all"]),
        ([2.0, 2.1, 2.2], False, [None, 2.4], ("mean of 1", (), "scores of 2.4"), [3, "trend", 1, "all"]),
        ([2.0, 2.1, 2.2], False, [1.9, None, 2.4], ("mean of 1", (), "scores of 2.4"), [3, "trend", "all", 1, "all"]),
        ([2.0, 2.1, 2.2], False, [1.9, math.inf, 2.4], ("mean of 1", (), "scores of 2.4"), [3, "trend", "all", 1, "all"]),
        ([2.0, 2.1, 2.2], False, [1.9, None, None], ("mean of 1", (), None), [3, "trend", "all", 1, "all"]),
        ([2.0], False, [2.4], ("mean of 1", (), "scores of 2.4"), [1, "all"]),
    ],
)
def test_the_mean_is_taken_where_its_trend_is_lower_than_the_best(losses, trend_is_all, found, expected, asked):
    run = Run(losses, trend_is_all)
    told, said = settled(run, found)
    assert ((told.weights, told.averaged, told.scores), said) == (expected, asked)
    last = found[-1]
    assert run.changes == ([] if last is None else [BestEvaluated(1, last)])
