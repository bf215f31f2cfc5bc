"""What a tracking server has of a task: runs, params, points that count, ends."""

import math
from collections import Counter

import pytest
from sqlalchemy import update

from service.mirrors import mirror_visit
from service.tasks.models import Job
from tests.service.fleet.scripted import completed, exited, moved, points
from tests.service.mirrors.conftest import TOKEN, added, finished, job_ids, mirror_of
from tests.service.mirrors.mlflow_server import MlflowServer


def test_a_task_is_a_run_with_a_run_for_each_job(tenant, placed, mlflow, courier, due):
    taken = placed(tags={"team": "voices"})
    taken.report(points(0, [1, 2]), points(1, [1], [math.nan]), taken.checkpoint({0: 2, 1: 1}))
    assert courier.work_off_due() == 1
    first, second = (mlflow.run_of(job) for job in job_ids(taken))
    parent = mlflow.run_of_task(taken.given.task_id)
    assert [*mlflow.experiments] == ["voices"]
    assert (first.curve("train_loss"), first.status) == ([(1, 1.99), (2, 1.98)], "RUNNING")
    ((step, value),) = second.curve("train_loss")
    assert (step, math.isnan(value)) == (1, True)
    config = taken.given.jobs[0].config
    assert (first.params["learning_rate"], first.params["rank"]) == (str(config.learning_rate), str(config.rank))
    assert (first.params["base_model"], first.params["job"], second.params["job"]) == ("small", "0", "1")
    for run in (first, second):
        assert run.tags["mlflow.parentRunId"] == parent.id
        assert (run.tags["motet.task"], run.tags["team"]) == (taken.given.task_id, "voices")
    assert {one["authorization"] for one in mlflow.headers} == {f"Bearer {TOKEN}"}
    seen = mirror_of(tenant, taken)
    assert (seen["state"], seen["error"], seen["points"], seen["run_id"]) == ("active", None, 3, parent.id)

    taken.report(points(0, [18], [1.25], "val_loss"), exited(1, 1))
    taken.report(taken.adapter(0, 1.25), completed(0, 20, 18, 1.25))
    due()
    assert courier.work_off_due() == 1
    assert first.curve("val_loss") == [(18, 1.25)]
    assert [run.status for run in (first, second, parent)] == ["FINISHED"] * 3
    assert (second.tags["motet.exit_reason"], parent.tags["motet.winner"]) == ("underperforming", job_ids(taken)[0])
    assert mirror_of(tenant, taken)["state"] == "finished"
    assert len(mlflow.runs) == 3
    due()
    before = len(mlflow.calls)
    assert (courier.work_off_due(), len(mlflow.calls)) == (0, before)


def test_a_task_that_has_not_changed_is_not_visited(placed, tracker, courier, due):
    placed()
    assert courier.work_off_due() == 1
    due()
    assert courier.work_off_due() == 0


def test_jobs_get_runs_when_they_start(placed, mlflow, courier, due):
    taken = placed(begun=0)
    assert courier.work_off_due() == 1
    assert (mlflow.calls, mlflow.runs) == ([], {})
    taken.report(moved(1, "warmup"))
    due()
    courier.work_off_due()
    taken.report(moved(0, "warmup"))
    due()
    courier.work_off_due()
    assert Counter("motet.job" in run.tags for run in mlflow.runs.values()) == {True: 2, False: 1}


@pytest.mark.parametrize(("end", "status"), [("cancel", "KILLED"), ("fail", "FAILED")])
def test_runs_end_as_their_jobs_do(tenant, placed, tracker, courier, end, status):
    taken = placed(begun=1)
    taken.report(points(0, [1]))
    if end == "cancel":
        assert tenant.post(f"/v1/tasks/{taken.given.task_id}/cancel").status_code == 200
    else:
        taken.report({"kind": "placement_failed", "error": "the base does not load"})
    courier.work_off_due()
    run = tracker.run_of(job_ids(taken)[0])
    assert (run.curve("train_loss"), run.status) == ([(1, 1.99)], status)
    if isinstance(tracker, MlflowServer):
        assert tracker.run_of_task(taken.given.task_id).status == status
    assert mirror_of(tenant, taken)["state"] == "finished"


def test_points_that_a_lost_executor_takes_back_are_not_there(tenant, placed, plan, tracker, courier, due):
    taken = placed()
    taken.report(points(0, [1, 2, 3]), points(0, [2], [0.5], "val_loss"), taken.checkpoint({0: 2}), points(1, [1, 2]))
    courier.work_off_due()
    first, second = (tracker.run_of(job) for job in job_ids(taken))
    assert (first.curve("train_loss"), second.curve("train_loss")) == ([(1, 1.99), (2, 1.98)], [])
    taken.report(points(0, [4, 5]), points(1, [3]))
    taken.node.lost(taken)
    plan()
    again = taken.node.take(taken.given.task_id)
    again.report(again.attached(), moved(1, "warmup"), points(0, [3, 4], [1.0, 0.9]), points(1, [1], [7.0]))
    again.report(again.checkpoint({0: 4, 1: 1}))
    due()
    courier.work_off_due()
    finished(again)
    due()
    courier.work_off_due()
    assert first.curve("train_loss") == [(1, 1.99), (2, 1.98), (3, 1.0), (4, 0.9)]
    assert (first.curve("val_loss"), second.curve("train_loss")) == ([(2, 0.5)], [(1, 7.0)])
    assert mirror_of(tenant, taken)["points"] == 6


def test_a_late_point_before_the_checkpoint_is_sent(placed, tracker, courier, due):
    taken = placed()
    taken.report(points(0, [1, 2]), taken.checkpoint({0: 2}))
    courier.work_off_due()
    taken.report(points(0, [2], [0.5], "val_loss"), points(0, [3, 4]), taken.checkpoint({0: 4}))
    due()
    courier.work_off_due()
    assert tracker.run_of(job_ids(taken)[0]).curve("val_loss") == [(2, 0.5)]


@pytest.mark.parametrize("value", [3, {"step": "x"}])
def test_a_damaged_checkpoint_holds_back_its_own_job_alone(placed, mlflow, courier, database, value):
    taken = placed()
    taken.report(points(0, [1, 2]), points(1, [1, 2]), taken.checkpoint({0: 2, 1: 2}))
    first, second = job_ids(taken)
    with database.begin() as session:
        session.execute(update(Job).where(Job.id == first).values(checkpoint=value))
    courier.work_off_due()
    assert [len(mlflow.run_of(job).curve("train_loss")) for job in (first, second)] == [0, 2]


def long_task(placed):
    """2,500 points of one job's two series; the fake server refuses batches of more than 1,000."""
    taken = placed()
    for at in range(0, 2048, 256):
        taken.report(points(0, list(range(at + 1, at + 257))))
    taken.report(*(points(0, list(range(at + 1, at + 227)), series="val_loss") for at in (0, 226)))
    taken.report(taken.checkpoint({0: 2048}))
    return taken


def test_long_curves_go_in_batches(tenant, placed, mlflow, courier):
    taken = long_task(placed)
    courier.work_off_due()
    run = mlflow.run_of(job_ids(taken)[0])
    assert [step for step, _ in run.curve("train_loss")] == list(range(1, 2049))
    assert [step for step, _ in run.curve("val_loss")] == list(range(1, 453))
    assert mirror_of(tenant, taken)["points"] == 2500
    assert mlflow.calls.count("runs/log-batch") == 3


def test_a_visit_that_lasts_too_long_leaves_the_rest_to_the_next(placed, mlflow, courier, monkeypatch):
    monkeypatch.setattr(mirror_visit, "VISIT_SECONDS", 0.0)
    taken = long_task(placed)
    assert courier.work_off_due() > 3
    assert len(mlflow.run_of(job_ids(taken)[0]).points) == 2500


def test_two_tasks_make_their_experiment_once(tenant, placed, mlflow, courier):
    """The second asks for it between the first one's question and its creation."""
    added(tenant, mlflow)
    placed(experiment="both")
    made = mlflow.answer

    def another(call, asked):
        if call == "experiments/create" and "both" not in mlflow.experiments:
            made(call, asked)
        return made(call, asked)

    mlflow.answer = another
    courier.work_off_due()
    assert [*mlflow.experiments] == ["both"]
    assert len(mlflow.runs) == 3
