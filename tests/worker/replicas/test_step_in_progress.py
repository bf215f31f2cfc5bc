"""A task's step that runs in slices: what is left of it, and when it can go on."""

from dataclasses import replace

import pytest
import torch

from benchmarks.consecutive_steps import job_steps
from benchmarks.llama_shapes import Rows
from tests.worker.model import tiny
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.plain.trainer import Trainer
from worker.policy.job_record import JobKey
from worker.policy.packing import Piece
from worker.replicas.step_in_progress import StepInProgress
from worker.replicas.training_job import JobStep

BUDGET = 200  # tokens: a piece is a row


@pytest.fixture(scope="module")
def steps() -> dict[JobKey, JobStep]:
    """Of three jobs, each of two rows."""
    torch.manual_seed(0)
    backbone = Backbone.of(tiny.model(tiny.configs()["llama"]))
    trainer = Trainer(backbone, Arena(backbone.targets, 160))
    return {one.job.key: one for one in job_steps(trainer, Rows(tiny.VOCAB), 2, 3)}


def run(step: StepInProgress, slices: int | None) -> list[Piece[JobKey]]:
    return [piece for pieces in step.next_pieces(slices).values() for piece in pieces]


def test_it_goes_on_in_the_same_rows_at_the_same_step_split_alike(steps: dict[JobKey, JobStep]) -> None:
    step, (first, second, third) = StepInProgress(list(steps.values()), BUDGET), steps
    assert step.can_resume(steps, BUDGET)
    assert not step.can_resume(steps, 2 * BUDGET)
    assert not step.can_resume(steps | {second: replace(steps[second], number=1)}, BUDGET), "its batch is another one"
    moved = replace(steps[third], slot=replace(steps[third].slot))
    assert not step.can_resume(steps | {third: moved}, BUDGET), "an adapter that left and came back has no gradient"
    assert step.can_resume(steps | {JobKey("gsm8k", 9): moved}, BUDGET), "a job that came since waits for the next one"
    step.drop_ended({})
    assert step.done
    assert not step.can_resume(steps, BUDGET)
    assert first not in step.steps


def test_a_step_is_its_slices_one_after_the_other(steps: dict[JobKey, JobStep]) -> None:
    whole, step = StepInProgress(list(steps.values()), BUDGET), StepInProgress(list(steps.values()), BUDGET)
    assert step.slots == [], "it has begun no gradient"
    assert not step.is_one_slice
    assert StepInProgress(list(steps.values()), 4000).is_one_slice
    ran, loads, completed = list[Piece[JobKey]](), [], list[JobStep]()
    while not step.done:
        loads.append(step.next_slice())
        ran += run(step, 1)
        assert not step.is_one_slice, "a step that has begun has other slices behind it"
        completed += step.take_completed()
        assert step.slots == [one.slot for one in step.steps.values()]
    assert sorted(ran, key=lambda piece: piece.job) == run(whole, None), "each job's in the order of its batch"
    last = {piece.job: at for at, piece in enumerate(ran)}
    assert [one.job.key for one in completed] == sorted(steps, key=last.__getitem__), "each once its last piece has run"
    assert [load.tokens for load in loads] == [piece.tokens for piece in ran]
    ranks = {key: one.job.config.rank for key, one in steps.items()}
    assert [load.adapter_rows for load in loads] == [ranks[piece.job] for piece in ran]


def test_what_is_left_of_a_step_runs_at_once_where_nobody_takes_turns_any_more(steps: dict[JobKey, JobStep]) -> None:
    whole, step = StepInProgress(list(steps.values()), BUDGET), StepInProgress(list(steps.values()), BUDGET)
    begun = run(step, 1)
    rest = run(step, None)
    assert sorted(begun + rest, key=lambda piece: (piece.job, piece.first)) == run(whole, None)
    assert len(step.take_completed()) == len(steps)


def test_a_job_that_has_ended_leaves_no_slice_of_its_own(steps: dict[JobKey, JobStep]) -> None:
    step = StepInProgress(list(steps.values()), BUDGET)
    (begun,) = run(step, 1)
    ended = next(key for key in steps if key != begun.job)
    step.drop_ended({key: one for key, one in steps.items() if key != ended})
    completed = step.take_completed()
    while not step.done:
        assert step.next_slice().jobs == 1, "no slice is empty"
        assert ended not in {piece.job for piece in run(step, 1)}
        completed += step.take_completed()
    assert {one.job.key for one in completed} == steps.keys() - {ended}
