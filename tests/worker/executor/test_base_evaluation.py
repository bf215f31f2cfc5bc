"""The base's evaluation for a task whose jobs all end before it is through: its score comes before the last job's end, after
which the service takes none."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from contract.messages.report_messages import BaseEvaluated, Detached, JobCompleted, JobExited, JobFailed
from contract.states import ExitReason
from tests.worker.inside import Inside, PacedExecutor
from tests.worker.reported import Reported
from worker.model.plain.trainer import Trainer
from worker.pipe_messages import Detach
from worker.replicas.replica_set import Replicas

pytestmark = pytest.mark.usefixtures("measured_once")

CALM = {"policy": "none", "eval_every": 4}
SPACE = {"learning_rate": [1e-2, 1e-3, 1e-4], "rank": [8], "batch_size": [4]}
ONE_STEP: dict[str, Any] = {"early_exit": CALM, "training": {"max_steps": 1}}
LONG_VALIDATION = {"dataset": {"validation_fraction": 0.4}}
ROW_BY_ROW = {"worker_step_tokens": 60}  # the base takes as many turns as there are rows


def last_end(reported: Reported) -> int:
    """Its place among the events."""
    return max(at for at, event in enumerate(reported.events) if isinstance(event, JobCompleted | JobExited | JobFailed))


def base_before_the_end(reported: Reported) -> BaseEvaluated:
    (base,) = reported.of(BaseEvaluated)
    assert reported.events.index(base) < last_end(reported)
    assert isinstance(reported.events[-1], Detached)
    return base


def once_all_have_ended(then: Callable[[PacedExecutor], None]) -> Callable[[PacedExecutor], None]:
    """For `prepare`: call `then` between two turns, once all jobs have ended and the base is still being evaluated."""

    def prepare(executor: PacedExecutor) -> None:
        def look() -> None:
            (task,) = executor._attached.open
            if not task.any_unfinished:
                executor.between_steps = lambda: None
                while not task.all_ended:
                    executor._inbox.get(timeout=120)()  # their adapters are being stored
                assert task in executor._baselines
                then(executor)

        executor.between_steps = look

    return prepare


@pytest.mark.parametrize("settings", [{}, ROW_BY_ROW])
def test_the_end_of_a_task_of_one_step_comes_after_the_base(fleet, placing, tmp_path, settings):
    inside = Inside(fleet, tmp_path / "short", **settings)
    (short,) = inside.run(placing(SPACE, **ONE_STEP))
    (long,) = Inside(fleet, tmp_path / "long", **settings).run(placing(SPACE, early_exit=CALM, training={"max_steps": 30}))
    assert base_before_the_end(short) == base_before_the_end(long)
    assert {job: (end.kind, end.step) for job, end in short.ended.items()} == dict.fromkeys(range(3), ("job_completed", 1))
    assert set(short.manifests) == {0, 1, 2}
    assert [end.lost for end in inside.ended] == [False]


def test_a_neighbour_goes_on_meanwhile(fleet, placing, tmp_path):
    short = placing(SPACE, **ONE_STEP, **LONG_VALIDATION)
    neighbour = placing(SPACE, early_exit=CALM, training={"max_steps": 30})
    steps: list[int] = []

    def on_report(told, report):
        if any(isinstance(event, BaseEvaluated) for event in report.events) and told.placement is short:
            steps.append(fleet.reported[neighbour.placement_id].step[0])

    fleet.on_report = on_report
    ended, beside = Inside(fleet, tmp_path / "both", **ROW_BY_ROW).run(short, neighbour, paced=True, together=True)
    fleet.on_report = lambda told, report: None
    again = neighbour.model_copy(update={"placement_id": "alone", "token": "token-alone"})
    (alone,) = Inside(fleet, tmp_path / "alone", **ROW_BY_ROW).run(again)
    base_before_the_end(ended)
    assert base_before_the_end(beside) == base_before_the_end(alone)
    assert beside.curves == alone.curves
    assert steps[0] > 3, "of 16 turns that the base took"


def test_jobs_that_all_diverge_are_compared_with_the_base(fleet, placing, tmp_path):
    wild = {**SPACE, "learning_rate": [1e20, 2e20]}
    spec = {"early_exit": {"policy": "alto", "eval_every": 1}, "training": {"max_steps": 2}}
    (reported,) = Inside(fleet, tmp_path, **ROW_BY_ROW).run(placing(wild, **spec, **LONG_VALIDATION))
    base_before_the_end(reported)
    assert [end.reason for end in reported.ended.values()] == [ExitReason.DIVERGING] * 2


def test_jobs_that_all_fail_wait_for_no_base(fleet, placing, tmp_path, monkeypatch):
    monkeypatch.setattr(Replicas, "rejected", lambda self, demands: {demand.key: "too large" for demand in demands})
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE, **ONE_STEP))
    assert [end.kind for end in reported.ended.values()] == ["job_failed"] * 3
    assert reported.of(BaseEvaluated) == []


def test_a_base_without_memory_is_given_up_and_the_jobs_end(fleet, placing, tmp_path, monkeypatch):
    """Its first passes find memory, and those after the jobs' end find none."""
    real, exhausted = Trainer._forward_pass, []

    def forward_pass(self, segments):
        if exhausted:
            torch.empty(1 << 60, dtype=torch.uint8)
        return real(self, segments)

    monkeypatch.setattr(Trainer, "_forward_pass", forward_pass)
    prepare = once_all_have_ended(lambda executor: exhausted.append(True))
    placement = placing(SPACE, **ONE_STEP, **LONG_VALIDATION)
    (reported,) = Inside(fleet, tmp_path, **ROW_BY_ROW).run(placement, prepare=prepare, paced=True)
    assert exhausted
    assert [end.kind for end in reported.ended.values()] == ["job_completed"] * 3
    assert reported.of(BaseEvaluated) == []


@pytest.mark.parametrize("keep", [True, False])
def test_told_to_leave_meanwhile(fleet, placing, tmp_path, keep):
    """keep: no other placement follows, so the base is evaluated. Otherwise the service has ended the task: nothing is told."""
    placement, inside = placing(SPACE, **ONE_STEP, **LONG_VALIDATION), Inside(fleet, tmp_path, **ROW_BY_ROW)
    detach = Detach(placement_id=placement.placement_id, keep=keep)
    told: list[Detach] = []

    def leave(executor: PacedExecutor) -> None:
        told.append(detach)
        executor.handle_command(detach)

    (reported,) = inside.run(placement, prepare=once_all_have_ended(leave), paced=True)
    assert told
    assert [end.lost for end in inside.ended] == [False]
    if keep:
        base_before_the_end(reported)
        assert len(reported.ended) == 3
    else:
        assert len(reported.ended) == 2
        assert reported.of(BaseEvaluated) == []


def test_a_base_that_an_earlier_placement_evaluated_is_not_waited_for(fleet, placing, tmp_path):
    known = placing(SPACE, **ONE_STEP).model_copy(update={"base_val_loss": 5.0})
    (reported,) = Inside(fleet, tmp_path, **ROW_BY_ROW).run(known)
    assert reported.of(BaseEvaluated) == []
    assert len(reported.ended) == 3


def test_a_task_that_selects_by_texts_has_its_base_evaluated_too(fleet, placing, tmp_path):
    asked = {"metrics": [{"type": "exact_match"}], "max_prompts": 3, "max_new_tokens": 4}
    placement = placing(SPACE, **ONE_STEP, **LONG_VALIDATION, evaluation=asked, select_by="exact_match")
    (reported,) = Inside(fleet, tmp_path, **ROW_BY_ROW).run(placement)
    base_before_the_end(reported)
    assert set(reported.manifests) == {0, 1, 2}


def test_rounds_that_end_at_once_evaluate_the_base_once(fleet, placing, tmp_path):
    """All diverge before their boundary: the second round begins while the base is being evaluated for the first."""
    space = {"method": "tpe", "n": 10, "learning_rate": [1e20, 2e20, 3e20], "rank": [4, 8], "batch_size": [4, 8]}
    spec = {"early_exit": {"policy": "alto", "eval_every": 1, "warmup_fraction": 0.5}, "training": {"max_steps": 10}}
    (reported,) = Inside(fleet, tmp_path, **ROW_BY_ROW).run(placing(space, **spec, **LONG_VALIDATION))
    base_before_the_end(reported)
    assert len(reported.ended) == 10


def test_dpo_jobs_step_after_the_base_is_known(fleet, placing, tmp_path):
    pairs = [{"prompt": f"{n} and one", "chosen": f" make {n + 1}.", "rejected": f" cost {n} pounds."} for n in range(30)]
    placement = placing({**SPACE, "beta": [0.1]}, pairs, objective={"type": "dpo"}, **ONE_STEP)
    (reported,) = Inside(fleet, tmp_path, **ROW_BY_ROW).run(placement)
    base_before_the_end(reported)
