"""What a tracking server may do to a mirror, and to nobody else: refuse, lie, hang, go away."""

import threading
from datetime import timedelta

import pytest
from sqlalchemy import func, select, update

from service.mirrors import mirror_claims, mlflow_client
from service.mirrors.mirror_claims import OF_TENANT
from service.mirrors.models import MirroredRun, TaskMirror, TrackingServer
from tests.service.fleet.scripted import points
from tests.service.live_server import PATIENCE
from tests.service.mirrors.conftest import added, finished, mirror_of
from tests.service.mirrors.mlflow_server import MlflowServer
from tests.service.mirrors.scripted_tracker import Answer
from tests.service.webhooks.serving import serving

PATH = "/v1/tracking-servers"


def refused(status: int, code: str, message: str = "no") -> Answer:
    return Answer(status, f'{{"error_code": "{code}", "message": "{message}"}}'.encode())


OF_NO_USE = [  # an answer to the first call, what is told of it, and the mirror's state
    (Answer(401, b"who?"), "answered 401", "active"),
    (refused(403, "PERMISSION_DENIED"), "answered 403 PERMISSION_DENIED: no", "active"),
    (Answer(404, b"<html>"), "answered 404", "active"),
    (refused(429, "REQUEST_LIMIT_EXCEEDED"), "answered 429", "active"),
    (Answer(503, b""), "answered 503", "active"),
    (Answer(200, b"<html>"), "answered no JSON object; is the URL that of an MLflow tracking server?", "active"),
    (Answer(200, b"9" * 400), "answered no JSON object", "active"),
    (Answer(200, b"9" * 5000), "answered no JSON object", "active"),
    (Answer(200, b"[" * 100_000), "answered no JSON object", "active"),
    (Answer(200, b"\xff\xfe"), "answered no JSON object", "active"),
    (Answer(200, b"{}"), "an answer lacks 'experiment'", "active"),
    (Answer(200, b'{"experiment": {"experiment_id": 7}}'), "'experiment_id' is no id", "active"),
    (Answer(200, b'{"experiment": {"experiment_id": "a/../b"}}'), "'experiment_id' is no id", "active"),
    (Answer(200, b" " * (4 * 2**20 + 2)), "answered more than 4194304 bytes", "active"),
    (refused(400, "INVALID_PARAMETER_VALUE"), "answered 400 INVALID_PARAMETER_VALUE: no", "failed"),
    (refused(400, "BAD", "a\\u0000b\\n" + "x" * 1000), "answered 400 BAD: a b xxx", "failed"),
    (
        Answer(200, b'{"experiment": {"experiment_id": "1", "lifecycle_stage": "deleted"}}'),
        "the experiment is deleted there; restore it",
        "failed",
    ),
]


def test_an_answer_that_is_of_no_use_is_told_and_harms_no_task(tenant, placed, mlflow, courier):
    taken = placed()
    (server,) = tenant.get(PATH).json()["data"]
    for answer, said, state in OF_NO_USE:
        mlflow.fault = lambda *_, answer=answer: answer
        assert courier.work_off_due() == 1
        seen = mirror_of(tenant, taken)
        assert (seen["state"], said in seen["error"], len(seen["error"]) <= 300) == (state, True, True), seen
        assert (seen["next_at"] is None) == (state == "failed")
        assert tenant.patch(f"{PATH}/{server['id']}", json={}).status_code == 200
    finished(taken)
    assert tenant.get(f"/v1/tasks/{taken.given.task_id}").json()["status"] == "succeeded"


@pytest.mark.parametrize("call", ["experiments/get-by-name", "runs/search"])
def test_no_redirect_is_followed(tenant, placed, mlflow, courier, call):
    with serving(MlflowServer()) as other:
        taken = placed()
        mlflow.fault = lambda at, _: Answer(302, b"", {"Location": f"{other.url}/x"}) if at == call else None
        courier.work_off_due()
        assert other.calls == []
    assert f"{call} answered 302, and redirects are not followed" in mirror_of(tenant, taken)["error"]


def test_a_server_that_lies_about_what_it_has_is_told(tenant, placed, mlflow, courier, due):
    taken, step = placed(), ""

    def lies(call, _):
        if call == "runs/get":
            said = f'{{"run": {{"data": {{"metrics": [{{"key": "train_loss", "step": {step}}}]}}}}}}'
            return Answer(200, said.encode())
        return Answer(500) if call == "runs/log-batch" else None

    mlflow.fault = lies
    taken.report(points(0, [1, 2, 3]), taken.checkpoint({0: 3}))
    courier.work_off_due()
    for step in ("1e999", "true", "null", '"' + "9" * 400 + '"'):
        due()
        courier.work_off_due()
        assert "'step' is no integer" in mirror_of(tenant, taken)["error"], step
    step = "-" + "9" * 400  # none of the batch is there, so it is sent again
    due()
    courier.work_off_due()
    assert "answered 500" in mirror_of(tenant, taken)["error"]
    step = "9" * 400  # an integer of any size is compared as it is: the server says that it has all
    due()
    courier.work_off_due()
    seen = mirror_of(tenant, taken)
    assert (seen["error"], seen["points"]) == (None, 3)


def test_a_mirror_is_given_up_after_a_day_and_goes_on_when_its_server_is_changed(
    tenant, placed, tracker, courier, due, database
):
    taken = placed()
    taken.report(points(0, [1]), taken.checkpoint({0: 1}))
    tracker.fault = lambda *_: Answer(503)
    for _ in range(3):
        assert courier.work_off_due() == 1
        assert mirror_of(tenant, taken)["state"] == "active"
        due()
    with database.begin() as session:
        earlier = TaskMirror.failing_since - timedelta(hours=24)
        session.execute(update(TaskMirror).values(failing_since=earlier))
    courier.work_off_due()
    seen = mirror_of(tenant, taken)
    assert (seen["state"], "answered 503" in seen["error"]) == ("failed", True)
    due()
    assert courier.work_off_due() == 0
    tracker.fault = lambda *_: None
    (server,) = tenant.get(PATH).json()["data"]
    assert tenant.patch(f"{PATH}/{server['id']}", json={}).status_code == 200
    assert courier.work_off_due() == 1
    seen = mirror_of(tenant, taken)
    assert (seen["state"], seen["error"], seen["points"]) == ("active", None, 1)


def test_waits_grow(placed, mlflow, courier, due, database, monkeypatch):
    monkeypatch.setattr(mirror_claims, "WAITS", (timedelta(hours=1), timedelta(hours=2), timedelta(hours=5)))
    placed()
    mlflow.fault = lambda *_: Answer(503)
    hours = []
    for _ in range(5):
        courier.work_off_due()
        with database.begin() as session:
            wait = session.scalar(select(TaskMirror.next_at - func.clock_timestamp()))
        hours.append(round(wait / timedelta(hours=1)))
        due()
    assert hours == [1, 2, 5, 5, 5]


def test_a_run_that_was_deleted_there_is_made_no_second_time(tenant, placed, mlflow, courier, due):
    taken = placed()
    courier.work_off_due()
    mlflow.run_of(taken.given.jobs[0].job_id).stage = "deleted"
    taken.report(points(0, [1]), taken.checkpoint({0: 1}))
    due()
    courier.work_off_due()
    seen = mirror_of(tenant, taken)
    assert (seen["state"], "must be in the 'active' state" in seen["error"]) == ("failed", True)
    assert len(mlflow.runs) == 3


def test_credentials_that_cannot_be_read_are_told(tenant, placed, mlflow, courier, database):
    taken = placed()
    with database.begin() as session:
        session.execute(update(TrackingServer).values(credentials=b"damaged"))
    courier.work_off_due()
    seen = mirror_of(tenant, taken)
    assert (seen["state"], "PATCH /v1/tracking-servers/" in seen["error"], mlflow.calls) == ("failed", True, [])


def test_a_tenants_server_that_hangs_delays_no_other_tenants(new_tenant, placed, mlflow, courier):
    slow, quick = new_tenant(), new_tenant()
    stuck, hanging = threading.Event(), threading.Semaphore(0)

    def hangs(*_):
        hanging.release()
        stuck.wait(PATIENCE)
        return None

    for _ in range(OF_TENANT + 2):
        placed(slow)
    mlflow.fault = hangs
    with serving(MlflowServer()) as other:
        courier.wake()
        for _ in range(OF_TENANT):
            assert hanging.acquire(timeout=PATIENCE)
        done = threading.Event()
        theirs = placed(quick, server=other)
        other.fault = lambda call, _: done.set() if call == "runs/create" and len(other.runs) == 2 else None
        courier.wake()
        assert done.wait(PATIENCE)
        assert mlflow.calls == ["experiments/get-by-name"] * OF_TENANT
        stuck.set()
        courier.close(seconds=PATIENCE)
    assert mirror_of(quick, theirs)["error"] is None


def test_a_search_without_end_ends_before_its_claim(tenant, placed, mlflow, courier, monkeypatch):
    monkeypatch.setattr(mlflow_client, "_SEARCH_SECONDS", 0.0)
    taken = placed()
    mlflow.fault = lambda call, _: Answer(200, b'{"next_page_token": "more"}') if call == "runs/search" else None
    courier.work_off_due()
    assert "runs/search did not end within 0 s" in mirror_of(tenant, taken)["error"]
    assert mlflow.calls.count("runs/search") == 1


def test_a_server_that_fails_is_slow_until_it_answers(tenant, placed, tracker, courier, due, database):
    def slow() -> bool:
        with database.begin() as session:
            return session.scalars(select(TrackingServer.slow).where(TrackingServer.tenant_id == tenant.tenant_id)).one()

    placed()
    tracker.fault = lambda *_: Answer(503)
    courier.work_off_due()
    assert slow()
    tracker.fault = lambda *_: None
    due()
    courier.work_off_due()
    assert not slow()


@pytest.mark.parametrize("ends", ["server", "task"])
def test_what_is_stopped_during_a_visit_is_recorded_no_further(tenant, placed, tracker, courier, database, ends):
    taken = placed()
    finished(taken)
    (server,) = tenant.get(PATH).json()["data"]
    place = f"{PATH}/{server['id']}" if ends == "server" else f"/v1/tasks/{taken.given.task_id}"

    first, before = ("runs/create", 1) if isinstance(tracker, MlflowServer) else ("upsertBucket", 0)  # of a job's run

    def stops(call, _):
        if call == first and len(tracker.runs) == before:
            assert tenant.delete(place).status_code == 204

    tracker.fault = stops
    assert courier.work_off_due() == 1
    assert len(tracker.runs) == before + 1, "what was asked for at that moment"
    with database.begin() as session:
        assert session.scalar(select(func.count()).select_from(MirroredRun)) == 0
        assert list(session.scalars(select(TaskMirror.state))) == (["stopped"] if ends == "server" else [])


def test_a_stopped_courier_gives_back_what_it_visits(tenant, placed, mlflow, courier, database):
    taken, stuck, asked = placed(), threading.Event(), threading.Event()

    def hangs(*_):
        asked.set()
        stuck.wait(PATIENCE)

    mlflow.fault = hangs
    courier.wake()
    assert asked.wait(PATIENCE)
    courier.close(seconds=0.0)
    with database.begin() as session:
        row = session.scalars(select(TaskMirror)).one()
        assert (row.held_until, row.next_at <= session.scalar(select(func.clock_timestamp()))) == (None, True)
    stuck.set()
    courier.close(seconds=PATIENCE)
    assert mirror_of(tenant, taken)["experiment_id"] is None, "an answer that came after it was given back counts for nothing"


def test_basic_credentials_and_none(tenant, new_tenant, placed, mlflow, courier):
    added(tenant, mlflow, credentials={"username": "u", "password": "p:q"})
    placed()
    courier.work_off_due()
    assert {one["authorization"] for one in mlflow.headers} == {"Basic dTpwOnE="}
    mlflow.headers.clear()
    other = new_tenant()
    added(other, mlflow)
    placed(other)
    courier.work_off_due()
    assert {one.get("authorization") for one in mlflow.headers} == {None}
