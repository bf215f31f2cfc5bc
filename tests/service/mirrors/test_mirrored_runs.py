"""What a tracking server has of a task: runs, params, points that count, ends; each once, whatever breaks off."""

import math
import os
import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest
from sqlalchemy.exc import OperationalError

from service.mirrors import mirror_visit, mirrored_task
from service.mirrors.mirror_claims import record
from tests.service.fleet.scripted import completed, exited, moved, points
from tests.service.live_server import PATIENCE
from tests.service.mirrors.conftest import TOKEN, added, finished, mirror_of
from tests.service.mirrors.mlflow_server import LOST, Answer, MlflowServer

_COURIER = """
from service.dependencies import Dependencies
from service.mirrors.mirror_courier import MirrorCourier
from service.settings import Settings
settings = Settings.load()
MirrorCourier.of(settings, Dependencies.of(settings).db).work_off_due()
"""


def job_ids(taken) -> list[str]:
    return [job.job_id for job in taken.given.jobs]


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


def test_a_task_that_has_not_changed_is_not_visited(placed, mlflow, courier, due):
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
def test_runs_end_as_their_jobs_do(tenant, placed, mlflow, courier, end, status):
    taken = placed(begun=1)
    taken.report(points(0, [1]))
    if end == "cancel":
        assert tenant.post(f"/v1/tasks/{taken.given.task_id}/cancel").status_code == 200
    else:
        taken.report({"kind": "placement_failed", "error": "the base does not load"})
    courier.work_off_due()
    run = mlflow.run_of(job_ids(taken)[0])
    assert (run.curve("train_loss"), run.status) == ([(1, 1.99)], status)
    assert mlflow.run_of_task(taken.given.task_id).status == status
    assert mirror_of(tenant, taken)["state"] == "finished"


def test_points_that_a_lost_executor_takes_back_are_not_there(tenant, placed, plan, mlflow, courier, due):
    taken = placed()
    taken.report(points(0, [1, 2, 3]), points(0, [2], [0.5], "val_loss"), taken.checkpoint({0: 2}), points(1, [1, 2]))
    courier.work_off_due()
    first, second = (mlflow.run_of(job) for job in job_ids(taken))
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
    assert len(mlflow.runs) == 3
    assert mirror_of(tenant, taken)["points"] == 6


def test_a_late_point_before_the_checkpoint_is_sent(placed, mlflow, courier, due):
    taken = placed()
    taken.report(points(0, [1, 2]), taken.checkpoint({0: 2}))
    courier.work_off_due()
    taken.report(points(0, [2], [0.5], "val_loss"), points(0, [3, 4]), taken.checkpoint({0: 4}))
    due()
    courier.work_off_due()
    assert mlflow.run_of(job_ids(taken)[0]).curve("val_loss") == [(2, 0.5)]


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


def whole(mlflow: MlflowServer, taken) -> None:
    """What must be there of the task of `report_some`, once."""
    first, second = (mlflow.run_of(job) for job in job_ids(taken))
    assert first.curve("train_loss") == [(1, 1.99), (2, 1.98), (3, 1.97)]
    assert (first.curve("val_loss"), second.curve("train_loss")) == ([(2, 0.5)], [(1, 1.99)])
    assert {run.status for run in (first, second, mlflow.run_of_task(taken.given.task_id))} == {"FINISHED"}
    assert first.params["rank"]


def report_some(taken) -> None:
    taken.report(points(0, [1, 2, 3]), points(0, [2], [0.5], "val_loss"), points(1, [1]))
    finished(taken)


def test_an_answer_that_gets_lost_makes_nothing_twice(tenant, placed, mlflow, courier, due):
    """At each call of a task's whole story in turn."""
    place = 0
    while True:
        taken = placed(experiment=f"e{place}")
        report_some(taken)
        start = len(mlflow.calls)
        mlflow.fault = lambda *_, at=start + place + 1: LOST if len(mlflow.calls) == at else None
        courier.work_off_due()
        lost = len(mlflow.calls) == start + place + 1
        if not lost:
            break
        seen = mirror_of(tenant, taken)
        assert (seen["state"], mlflow.calls[-1] in seen["error"]) == ("active", True)
        due()
        courier.work_off_due()
        whole(mlflow, taken)
        seen = mirror_of(tenant, taken)
        assert (seen["state"], seen["error"], seen["points"]) == ("finished", None, 5)
        place += 1
    whole(mlflow, taken)
    assert place == 14


def test_a_record_that_gets_lost_makes_nothing_twice(placed, mlflow, courier, due, monkeypatch):
    """The database goes away at each step of a visit in turn, before what was answered is recorded."""
    place, lost = 0, True
    while lost:
        lost, steps = False, 0

        def failing(*args, at=place, **values):
            nonlocal lost, steps
            steps += 1
            if steps == at + 1:
                lost = True
                raise OperationalError("UPDATE", {}, OSError("gone"))
            record(*args, **values)

        taken = placed(experiment=f"e{place}")
        report_some(taken)
        with monkeypatch.context() as patch:
            patch.setattr(mirrored_task, "record", failing)
            courier.work_off_due()
        due()
        courier.work_off_due()
        whole(mlflow, taken)
        place += 1
    assert place > 10


def test_a_batch_of_which_a_part_arrived_is_completed(tenant, placed, mlflow, courier, due):
    """As a file store that is killed leaves it: the points of a batch up to one of them."""
    taken = placed()
    taken.report(points(0, [1, 2, 3]), points(0, [1, 2], series="val_loss"), taken.checkpoint({0: 3}))

    def cut(call, asked):
        if call != "runs/log-batch":
            return None
        mlflow.answer(call, asked | {"metrics": asked["metrics"][:2]})
        mlflow.fault = lambda *_: None
        return Answer(500, b"killed")

    mlflow.fault = cut
    courier.work_off_due()
    assert "runs/log-batch answered 500" in mirror_of(tenant, taken)["error"]
    due()
    courier.work_off_due()
    run = mlflow.run_of(job_ids(taken)[0])
    assert run.curve("train_loss") == [(1, 1.99), (2, 1.98), (3, 1.97)]
    assert [step for step, _ in run.curve("val_loss")] == [1, 2]
    assert len({at for *_, at in run.points}) == 1, "what is sent again has the time that it had"
    assert mirror_of(tenant, taken)["points"] == 5


def test_a_batch_in_doubt_is_completed_whatever_came_since(placed, mlflow, courier, due):
    """More chunks of its first series than are read for a batch."""
    taken = placed()
    taken.report(points(0, [1, 2, 3]), points(0, [1, 2], series="val_loss"), taken.checkpoint({0: 3}))
    mlflow.fault = lambda call, _: LOST if call == "runs/log-batch" else None
    courier.work_off_due()
    run = mlflow.run_of(job_ids(taken)[0])
    run.points.clear()  # it did not arrive after all
    steps = range(4, 4 + 18 * 256)
    taken.report(*(points(0, steps[at : at + 256]) for at in range(0, len(steps), 256)), taken.checkpoint({0: steps[-1]}))
    batches: list[set[int]] = []

    def sees(call, asked):
        if call == "runs/log-batch":
            batches.append({one["step"] for one in asked["metrics"] if one["key"] == "val_loss"})

    mlflow.fault = sees
    due()
    courier.work_off_due()
    assert batches[0] == {1, 2}, "what is in doubt comes first, as a whole"
    assert [step for step, _ in run.curve("train_loss")] == list(range(1, steps[-1] + 1))


def test_a_courier_that_is_killed_is_followed_by_another(tenant, placed, mlflow, courier, due, settings, environment_of):
    taken, stuck, hanging = placed(), threading.Event(), threading.Event()
    report_some(taken)

    def answers(call, asked):
        if call == "runs/log-batch" and not hanging.is_set():
            mlflow.answer(call, asked)
            hanging.set()
            stuck.wait(PATIENCE)
            return LOST
        return None

    mlflow.fault = answers
    process = subprocess.Popen([sys.executable, "-c", _COURIER], env=environment_of(settings))
    try:
        assert hanging.wait(PATIENCE)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert courier.work_off_due() == 0  # hidden until its timeout
    due()
    mlflow.fault = lambda *_: None
    courier.work_off_due()
    stuck.set()
    whole(mlflow, taken)
    assert mirror_of(tenant, taken)["points"] == 5


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
