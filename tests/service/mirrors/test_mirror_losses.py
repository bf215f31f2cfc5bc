"""A tracking server has each run and each point once, though answers, records and couriers get lost."""

import os
import signal
import subprocess
import sys
import threading

from sqlalchemy.exc import OperationalError

from service.messaging.poison_rows import GIVEN_UP, MOST_UNRECORDED
from service.mirrors import mirrored_task
from service.mirrors.mirror_claims import record
from tests.service.fleet.scripted import points
from tests.service.live_server import PATIENCE
from tests.service.mirrors.conftest import finished, job_ids, mirror_of
from tests.service.mirrors.mlflow_server import MlflowServer
from tests.service.mirrors.scripted_tracker import LOST, Answer, ScriptedTracker

_COURIER = """
from datetime import timedelta
from service.dependencies import Dependencies
from service.mirrors import mirror_claims
from service.mirrors.mirror_courier import MirrorCourier
from service.settings import Settings
mirror_claims.HELD = timedelta(hours=3)
settings = Settings.load()
MirrorCourier.of(settings, Dependencies.of(settings).db).work_off_due()
"""


def whole(tracker: ScriptedTracker, taken) -> None:
    """What must be there of the task of `report_some`, once."""
    first, second = (tracker.run_of(job) for job in job_ids(taken))
    assert first.curve("train_loss") == [(1, 1.99), (2, 1.98), (3, 1.97)]
    assert (first.curve("val_loss"), second.curve("train_loss")) == ([(2, 0.5)], [(1, 1.99)])
    assert {first.status, second.status} == {"FINISHED"}
    assert first.params["rank"]
    if isinstance(tracker, MlflowServer):
        assert tracker.run_of_task(taken.given.task_id).status == "FINISHED"


def report_some(taken) -> None:
    taken.report(points(0, [1, 2, 3]), points(0, [2], [0.5], "val_loss"), points(1, [1]))
    finished(taken)


def test_an_answer_that_gets_lost_makes_nothing_twice(tenant, placed, tracker, courier, due):
    """At each call of a task's whole story in turn."""
    place = 0
    while True:
        taken = placed(experiment=f"e{place}")
        report_some(taken)
        start = len(tracker.calls)
        tracker.fault = lambda *_, at=start + place + 1: LOST if len(tracker.calls) == at else None
        courier.work_off_due()
        lost = len(tracker.calls) == start + place + 1
        if not lost:
            break
        seen = mirror_of(tenant, taken)
        assert (seen["state"], tracker.calls[-1] in seen["error"]) == ("active", True)
        due()
        courier.work_off_due()
        whole(tracker, taken)
        seen = mirror_of(tenant, taken)
        assert (seen["state"], seen["error"], seen["points"]) == ("finished", None, 5)
        place += 1
    whole(tracker, taken)
    assert place == (14 if isinstance(tracker, MlflowServer) else 8)


def test_a_record_that_gets_lost_makes_nothing_twice(placed, tracker, courier, due, monkeypatch):
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
        whole(tracker, taken)
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


def test_a_courier_that_is_killed_is_followed_by_another(tenant, placed, tracker, courier, due, settings, environment_of):
    taken, stuck, hanging = placed(), threading.Event(), threading.Event()
    report_some(taken)

    def answers(call, asked):
        if call in ("runs/log-batch", "file_stream") and not hanging.is_set():
            tracker.carry_out(call, asked, tracker.headers[-1])
            hanging.set()
            stuck.wait(PATIENCE)
            return Answer()  # to nobody; LOST would carry it out once more
        return None

    tracker.fault = answers
    process = subprocess.Popen([sys.executable, "-c", _COURIER], env=environment_of(settings))
    try:
        assert hanging.wait(PATIENCE)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert courier.work_off_due() == 0  # hidden until its timeout
    due()
    tracker.fault = lambda *_: None
    courier.work_off_due()
    stuck.set()
    whole(tracker, taken)
    assert mirror_of(tenant, taken)["points"] == 5


def test_a_visit_that_ends_its_process_is_given_up_and_the_others_go_on(
    tenant, placed, mlflow, courier, due, settings, environment_of
):
    """A mirror that is visited beside it is not taken for such a one."""
    poison, other = placed(), placed(experiment="other")
    report_some(poison)
    report_some(other)
    beside, killed = threading.Barrier(2), threading.Event()

    def answers(call, asked):
        if call != "experiments/get-by-name":
            return None
        if not killed.is_set():
            beside.wait(PATIENCE)
        if asked["experiment_name"] == "voices":
            os.kill(processes[-1].pid, signal.SIGKILL)
            killed.set()
        killed.wait(PATIENCE)
        return None

    mlflow.fault = answers
    processes: list[subprocess.Popen[bytes]] = []
    while not processes or processes[-1].wait(2 * PATIENCE) == -signal.SIGKILL:
        assert len(processes) <= MOST_UNRECORDED
        due()
        processes.append(subprocess.Popen([sys.executable, "-c", _COURIER], env=environment_of(settings)))
    assert len(processes) == MOST_UNRECORDED + 1
    seen = mirror_of(tenant, poison)
    assert (seen["state"], seen["error"]) == ("failed", GIVEN_UP)
    assert mirror_of(tenant, other)["state"] == "finished"
    (server,) = tenant.get("/v1/tracking-servers").json()["data"]
    mlflow.fault = lambda *_: None
    assert tenant.patch(f"/v1/tracking-servers/{server['id']}", json={"url": mlflow.url}).status_code == 200
    courier.work_off_due()
    assert mirror_of(tenant, poison)["state"] == "finished", "a change of the server begins anew"
