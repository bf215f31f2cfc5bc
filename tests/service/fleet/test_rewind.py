"""Leaving a node: each unfinished job back at its checkpoint, later points hidden but kept, and nothing ranked twice."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from contract.row_scores import RowScores
from contract.states import JOB_REWINDS, JobStatus
from service.adapters.models import Adapter
from service.background.retention import Retention, forget
from service.tasks.lifecycle.event_log import EventKind
from service.tasks.lifecycle.rewind import status_at
from service.tasks.models import Job, PointChunk, TaskEvent
from tests.service.fleet.scripted import completed, exited, moved, points


@pytest.fixture
def lost(tenant, new_node, rested):
    """Lose the executor of a placement and take the task's next one."""

    def act(placement):
        assert placement.node.lost(placement).status_code == 204
        rested()
        return placement.node.take(placement.given.task_id)

    return act


@pytest.fixture
def placement(tenant, new_node, plan):
    node = new_node()
    task = tenant.task(search_space={"learning_rate": [1e-4, 2e-4, 3e-4, 4e-4, 5e-4], "batch_size": [4]})
    plan()
    taken = node.take(task["id"])
    taken.report(taken.attached(steps=20, warmup=2))
    return taken


def curve(database, job_id, series="train_loss", hidden=False):
    with database.begin() as session:
        own = select(PointChunk).where(PointChunk.job_id == job_id, PointChunk.series == series)
        own = own.where(PointChunk.hidden_by.is_not(None) if hidden else PointChunk.hidden_by.is_(None))
        return [step for chunk in session.scalars(own.order_by(PointChunk.first_step)) for step in chunk.steps]


def test_each_job_goes_back_to_where_its_checkpoint_stood(database, placement, lost):
    job_ids = [job.job_id for job in placement.given.jobs]
    # 0 has ended; 1 is promoted; 2 is parked; 3 is in warmup with a checkpoint; 4 has none
    placement.report(*(moved(job, "warmup") for job in range(5)), *(points(job, [1]) for job in range(5)))
    placement.report(*(points(job, [2]) for job in range(4)), *(points(job, [2], [1.5 + job], "val_loss") for job in range(3)))
    placement.report(exited(0, 2), moved(1, "training", 2, warmup_val_loss=2.5), moved(2, "parked", 2, warmup_val_loss=3.5))
    placement.report(points(1, [3, 4]), points(1, [4], [1.2], "val_loss"), placement.checkpoint({1: 4, 2: 2, 3: 1}))
    placement.report(points(1, [5, 6]), points(1, [6], [1.1], "val_loss"), points(3, [3]))

    again = lost(placement)
    ended, promoted, parked, warm, fresh = again.given.jobs
    assert (ended.status, ended.exit_reason, ended.checkpoint) == ("exited", "underperforming", None)
    assert (promoted.status, promoted.checkpoint.step, promoted.promoted, promoted.warmup_val_loss) == (
        "training",
        4,
        True,
        2.5,
    )
    assert (parked.status, parked.checkpoint.step, parked.warmup_val_loss) == ("parked", 2, 3.5)
    assert (warm.status, warm.checkpoint.step, warm.warmup_val_loss) == ("warmup", 1, None)
    assert (fresh.status, fresh.checkpoint) == ("pending", None)
    assert again.given.next_seq == 1

    assert curve(database, job_ids[0]) == [1, 2]
    assert (curve(database, job_ids[1]), curve(database, job_ids[1], hidden=True)) == ([1, 2, 3, 4], [5, 6])
    assert (curve(database, job_ids[1], "val_loss"), curve(database, job_ids[1], "val_loss", hidden=True)) == ([2, 4], [6])
    assert (curve(database, job_ids[3]), curve(database, job_ids[3], hidden=True)) == ([1], [2, 3])
    assert (curve(database, job_ids[4]), curve(database, job_ids[4], hidden=True)) == ([], [1])
    with database.begin() as session:
        jobs = list(session.scalars(select(Job).where(Job.task_id == placement.given.task_id).order_by(Job.index)))
    assert [job.step for job in jobs] == [2, 4, 2, 1, 0]
    assert (jobs[1].best_step, jobs[1].best_val_loss) == (4, 1.2)
    assert (jobs[4].best_step, jobs[4].started_at) == (None, None)
    with database.begin() as session:
        own = (TaskEvent.task_id == placement.given.task_id, TaskEvent.kind == EventKind.REWIND)
        told = [event.data for event in session.scalars(select(TaskEvent).where(*own).order_by(TaskEvent.number))]
    assert [(one["job"], one["step"]) for one in told] == [(1, 4), (3, 1), (4, -1)], "2 stood at its checkpoint"

    # and training goes on where it stood, without a gap and without a step twice
    again.report(points(1, [5, 6, 7]), points(3, [2, 3]), moved(4, "warmup"), points(4, [1, 2]))
    assert curve(database, job_ids[1]) == [1, 2, 3, 4, 5, 6, 7]
    assert curve(database, job_ids[3]) == [1, 2, 3]
    assert curve(database, job_ids[4]) == [1, 2]


def test_promotion_outlives_a_rewind_to_the_very_start(placement, lost):
    placement.report(moved(0, "warmup"), points(0, [1, 2]), moved(0, "training", 2, warmup_val_loss=1.5))
    again = lost(placement)
    job = again.given.jobs[0]
    assert (job.status, job.promoted, job.warmup_val_loss, job.checkpoint) == ("pending", True, 1.5, None)


def test_one_that_was_promoted_and_parked_again_trains_on(database, placement, lost):
    """An earlier rewind took it to its start, and its next executor parked it at the boundary that it had passed."""
    placement.report(*(moved(job, "warmup") for job in range(2)), *(points(job, [1, 2]) for job in range(2)))
    placement.report(*(moved(job, "training", 2, warmup_val_loss=1.5) for job in range(2)))
    again = lost(placement)
    again.report(*(moved(job, "warmup") for job in range(2)), *(points(job, [1, 2]) for job in range(2)))
    again.report(moved(1, "parked", 2, warmup_val_loss=1.5), again.checkpoint({0: 1, 1: 2}))
    once_more = lost(again)
    given = [(job.status, job.promoted, job.checkpoint.step) for job in once_more.given.jobs[:2]]
    assert given == [("warmup", True, 1), ("warmup", True, 2)], "their executor says that they train"
    once_more.report(moved(0, "training", 1), moved(1, "training", 2))


def test_scores_at_the_boundary_are_given_back_until_the_cut_is_decided(database, placement, lost):
    """A job that ended, and one whose checkpoint is from before its boundary, are compared by them after a restart."""
    sent = [RowScores(totals=[1.0 + job, 2.0], weights=[3, 4]) for job in range(5)]
    told = [{"warmup_val_loss": 1.5 + job, "boundary_scores": sent[job].model_dump()} for job in range(5)]
    placement.report(*(moved(job, "warmup") for job in range(5)), *(points(job, [1, 2]) for job in range(4)))
    placement.report(moved(0, "parked", 2, **told[0]), exited(0, 2), moved(1, "training", 2, **told[1]))
    placement.report(
        placement.checkpoint({1: 1, 2: 2, 3: 1}), moved(2, "parked", 2, **told[2]), moved(3, "parked", 2, **told[3])
    )
    again = lost(placement)
    given = again.given.jobs
    assert [job.boundary_scores for job in given] == [sent[0], sent[1], sent[2], None, None], "3 and 4 reach it again"

    again.report(moved(3, "parked", 2, **told[3]), moved(4, "warmup"), moved(4, "parked", 2, **told[4]))
    again.report(*(exited(job, 2) for job in (2, 3, 4)))
    after = lost(again)
    assert [job.boundary_scores for job in after.given.jobs] == [None] * 5, "nobody's rank is open any more"

    after.report(exited(1, 2))
    assert forget(database, Retention())["boundary_scores"] == 5
    with database.begin() as session:
        assert not session.scalars(select(Job.id).where(Job.boundary_scores.is_not(None))).all()


def test_an_adapter_whose_jobs_end_was_never_reported_is_made_again(database, placement, lost):
    placement.report(moved(0, "warmup"), moved(1, "warmup"), placement.adapter(0, 1.5), completed(0, loss=1.5))
    placement.report(placement.adapter(1, 1.2))
    again = lost(placement)
    with database.begin() as session:
        assert [one.job_id for one in session.scalars(select(Adapter))] == [again.given.jobs[0].job_id]
    again.report(moved(1, "warmup"), again.adapter(1, 1.3), completed(1, loss=1.3))


def test_no_task_starts_from_an_adapter_that_a_rewind_may_take(placement, tenant):
    placement.report(moved(0, "warmup"), placement.adapter(0, 1.5))
    (made,) = tenant.get("/v1/adapters").json()["data"]
    spec = tenant.spec(tenant.file(), warm_start={"adapter_id": made["id"]})
    refused = tenant.post("/v1/tasks", json=spec)
    assert refused.status_code == 422, refused.text
    (error,) = refused.json()["errors"]
    assert (error["field"], error["code"]) == ("warm_start.adapter_id", "adapter_unfinished")
    assert made["job_id"] in error["message"]
    placement.report(completed(0, loss=1.5))
    assert tenant.post("/v1/tasks", json=spec).status_code == 201


def test_a_second_rewind_hides_what_was_trained_since(database, placement, lost):
    job_id = placement.given.jobs[0].job_id
    placement.report(moved(0, "warmup"), points(0, list(range(1, 250))), points(0, list(range(250, 300))))
    placement.report(placement.checkpoint({0: 290}))
    again = lost(placement)
    again.report(points(0, list(range(291, 310))))
    once_more = lost(again)
    assert curve(database, job_id) == list(range(1, 291))
    assert sorted(curve(database, job_id, hidden=True)) == sorted([*range(291, 300), *range(291, 310)])
    once_more.report(points(0, [291]))


def test_an_ended_jobs_checkpoint_is_let_go(database, placement):
    placement.report(moved(0, "warmup"), points(0, [1]), placement.checkpoint({0: 1}))
    placement.report(exited(0, 1))
    with database.begin() as session:
        assert session.get_one(Job, placement.given.jobs[0].job_id).checkpoint is None


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data(), selects=st.booleans())
def test_a_rewind_only_ever_goes_where_the_table_allows(data, selects):
    """Whatever a job went through by the wire's rules, its way back is in the table."""
    warmup, total = data.draw(st.sampled_from([(1, 1), (2, 20), (5, 5)]))
    status = data.draw(st.sampled_from([JobStatus.PENDING, JobStatus.WARMUP, JobStatus.PARKED, JobStatus.TRAINING]))
    ranked = status in (JobStatus.PARKED, JobStatus.TRAINING)
    job = Job(
        status=status,
        total_steps=total,
        warmup_steps=warmup,
        promoted=status == JobStatus.TRAINING or data.draw(st.booleans()),  # before an earlier rewind
        warmup_val_loss=1.0 if ranked and data.draw(st.booleans()) else None,
    )
    step = None if status == JobStatus.PENDING else data.draw(st.none() | st.integers(0, total))
    assert status_at(job, step, selects) in JOB_REWINDS[status]
