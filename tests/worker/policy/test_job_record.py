"""A job's record: each change's effect, what a stage cannot meet, and what holds after any sequence of changes."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.job_config import JobConfig
from contract.messages.placement_messages import CheckpointRef, JobAssignment
from contract.row_scores import RowScores
from contract.states import JobStatus
from worker.policy.early_exit.policy_interface import History
from worker.policy.job_record import (
    AVERAGED,
    Best,
    BestEvaluated,
    CheckpointKnown,
    Ending,
    Evaluated,
    JobEnded,
    JobProgress,
    JobRecord,
    Parked,
    Promoted,
    RungReached,
    Stage,
    StepsTaken,
    TrainingBegan,
    WarmupBegan,
    reduced,
)

CONFIG = JobConfig(learning_rate=1e-3, rank=8, alpha=16, batch_size=4, seed=0)
REF = CheckpointRef(step=3, sha256="a" * 64, bytes=1)
LOSSES = st.floats(allow_nan=True, allow_infinity=True, width=32)
CHANGES = st.one_of(
    *(st.just(change) for change in (WarmupBegan(), TrainingBegan(), Parked(), Promoted(), Ending(), JobEnded())),
    st.builds(StepsTaken, st.lists(LOSSES, max_size=3).map(tuple), st.just(0.1)),
    st.builds(Evaluated, LOSSES, st.just(History())),
    st.builds(RungReached, st.integers(0, 3), LOSSES),
    st.just(CheckpointKnown(REF)),
)


def after(record: JobRecord, *changes) -> JobRecord:
    for change in changes:
        record = reduced(record, change)
    return record


def test_a_jobs_life_event_by_event():
    record = after(JobRecord(Stage.PENDING), WarmupBegan(), StepsTaken((4.0,), 0.5), StepsTaken((2.0,), 0.5))
    assert (record.stage, record.progress.step, record.progress.ema) == (Stage.WARMUP, 2, 3.0)
    seen = History(val=(1.5,))
    record = after(record, Evaluated(1.5, seen), RungReached(0, 1.5))
    assert record.progress == JobProgress(2, 3.0, seen, (Best(2, 1.5),), (1.5,))
    assert record.awaits_rank
    record = after(record, Parked(), Promoted())
    assert (record.stage, record.promoted, record.rungs_decided, record.awaits_rank) == (Stage.TRAINING, True, 1, False)
    assert record.unsaved
    record = after(record, StepsTaken((1.0,), 0.5), CheckpointKnown(REF))
    assert not record.unsaved
    record = after(record, StepsTaken((1.0,), 0.5))
    assert record.unsaved
    record = after(record, Evaluated(1.75, seen), Ending(), JobEnded())
    assert record.progress.best == Best(2, 1.5), "a higher loss is not the best"
    assert (record.stage, record.unsaved, record.unfinished) == (Stage.ENDED, False, False)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_step_whose_loss_is_not_finite_counts_and_is_not_smoothed(loss):
    record = after(JobRecord(Stage.TRAINING), StepsTaken((4.0, loss), 0.5), Evaluated(loss, History()))
    assert (record.progress.step, record.progress.ema, record.progress.best) == (2, 4.0, None)


def test_a_rung_that_is_reached_again_after_a_resume_has_one_loss():
    record = JobRecord(Stage.TRAINING, True, JobProgress(rung_losses=(3.0, 2.0)), rungs_decided=2)
    assert after(record, RungReached(1, 2.5)).progress.rung_losses == (3.0, 2.5)
    assert after(record, RungReached(2, 1.5)).progress.rung_losses == (3.0, 2.0, 1.5)


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        (Stage.PENDING, StepsTaken((1.0,), 0.1)),
        (Stage.PARKED, StepsTaken((1.0,), 0.1)),
        (Stage.PARKED, Evaluated(1.0, History())),
        (Stage.TRAINING, WarmupBegan()),
        (Stage.TRAINING, Parked()),
        (Stage.PENDING, Promoted()),
        (Stage.ENDING, CheckpointKnown(REF)),
        (Stage.ENDING, Ending()),
        (Stage.ENDED, JobEnded()),
    ],
)
def test_what_a_stage_cannot_meet_is_an_error(stage, change):
    with pytest.raises(ValueError, match=f"is not allowed in stage {stage}"):
        reduced(JobRecord(stage), change)


@given(st.lists(CHANGES, max_size=40))
def test_any_sequence_of_events(changes):
    record = JobRecord(Stage.PENDING)
    for change in changes:
        before = record
        try:
            record = reduced(record, change)
        except ValueError:
            continue
        assert before.stage is not Stage.ENDED, "nothing follows the end"
        assert record.progress.step - before.progress.step == (len(change.losses) if isinstance(change, StepsTaken) else 0)
        assert record.rungs_decided >= before.rungs_decided
        assert record.promoted or not before.promoted
        if before.progress.best is not None:
            assert record.progress.best.val_loss <= before.progress.best.val_loss
        best, ema = record.progress.best, record.progress.ema
        assert best is None or (math.isfinite(best.val_loss) and best.step <= record.progress.step)
        assert ema is None or math.isfinite(ema)
        again = reduced(before, change)
        assert again == record or math.isnan(sum(again.progress.rung_losses)), "the same inputs, the same record"


def test_a_job_as_it_is_assigned():
    fresh = JobAssignment(job_id="j", index=0, config=CONFIG, status=JobStatus.PENDING)
    assert JobRecord.of(fresh, None) == JobRecord(Stage.PENDING)
    seen = JobProgress(step=3, ema=1.0, rung_losses=(2.0, 1.0))
    parked = fresh.model_copy(update={"status": JobStatus.PARKED, "warmup_val_loss": 2.5, "checkpoint": REF})
    record = JobRecord.of(parked, seen)
    assert record == JobRecord(Stage.PARKED, False, replace(seen, rung_losses=(2.5, 1.0)), 0, REF)
    promoted = parked.model_copy(update={"status": JobStatus.TRAINING, "promoted": True})
    assert JobRecord.of(promoted, seen).rungs_decided == 2
    lost = promoted.model_copy(update={"checkpoint": None})
    assert JobRecord.of(lost, None) == JobRecord(Stage.TRAINING, True, JobProgress(rung_losses=(2.5,)), rungs_decided=1)
    assert JobRecord.of(lost, seen).checkpoint is None
    assert JobRecord.of(promoted, None).checkpoint is None, "its checkpoint was not read, so storage holds none of its steps"
    without = promoted.model_copy(update={"warmup_val_loss": None})
    assert JobRecord.of(without, JobProgress(step=1)).rungs_decided == 1, "it does not wait for its rank again"
    scores = RowScores(totals=[2.0, 3.0])
    scored = JobRecord.of(lost.model_copy(update={"boundary_scores": scores}), JobProgress(step=1))
    assert scored.progress.boundary_scores == scores, (
        "its checkpoint is from before the boundary, and others wait for its scores"
    )
    assert JobRecord.of(parked, replace(seen, boundary_scores=scores)).progress.boundary_scores == scores


def test_the_lowest_losses_are_kept_in_order_and_as_many_as_are_asked():
    record, seen = JobRecord(Stage.WARMUP), History()
    for loss in (3.0, 2.0, 2.5):
        record = after(record, StepsTaken((1.0,), 0.5), Evaluated(loss, seen, 1))
    assert record.progress.lowest == (Best(2, 2.0),)
    assert record.progress.place is None, "a higher loss than the best"
    record, places = after(record, Parked(), Promoted()), []
    for loss in (2.2, 2.0, math.nan, 1.5, 2.1, 1.5):
        record = after(record, StepsTaken((1.0,), 0.5), Evaluated(loss, seen))
        places.append(record.progress.place)
    assert places == [1, 1, None, 0, None, 1], "of equal losses the earlier one is lower"
    assert record.progress.lowest == (Best(7, 1.5), Best(9, 1.5), Best(2, 2.0))
    assert AVERAGED == 3
    record = after(record, Ending())
    assert after(record, BestEvaluated(7, 1.6)).progress.lowest == (Best(7, 1.6),)
    assert after(record, BestEvaluated(7, math.nan)).progress.lowest == ()
