"""What Weights & Biases may do to a mirror, and to nobody else: refuse, ask for patience, lie, be away."""

from datetime import timedelta
from email.utils import format_datetime

import pytest
from sqlalchemy import func, select

from service.mirrors import mirror_courier, tracker_calls
from service.mirrors.mlflow_client import MlflowClient
from service.mirrors.mlflow_tracker import MlflowTracker
from service.mirrors.models import TaskMirror
from tests.service.fleet.scripted import points
from tests.service.mirrors.conftest import added, finished, mirror_of
from tests.service.mirrors.scripted_tracker import Answer
from tests.service.mirrors.wandb_server import WandbServer
from tests.service.webhooks.serving import serving

PATH = "/v1/tracking-servers"
WHOSE = "is the URL that of a Weights & Biases server?"
OF_NO_USE = [  # a call, an answer to it, what is told of it, and the mirror's state
    (
        "viewer",
        Answer(403, b'{"errors": [{"message": "permission denied"}]}'),
        "viewer answered 403: permission denied",
        "active",
    ),
    ("viewer", Answer(200, b'{"data": {"viewer": null}}'), "the API key is not known there", "active"),
    ("viewer", Answer(200, b'{"data": {"viewer": {"entity": "../x"}}}'), "name one in the integration's 'entity'", "active"),
    ("viewer", Answer(200, b'{"data": {"viewer": {"entity": ".."}}}'), "name one in the integration's 'entity'", "active"),
    ("viewer", Answer(200, b'{"data": {"viewer": 7}}'), "name one in the integration's 'entity'", "active"),
    ("viewer", Answer(200, b"<html>"), f"viewer answered no JSON object; {WHOSE}", "active"),
    ("viewer", Answer(200, b"{}"), f"viewer answered no 'data'; {WHOSE}", "active"),
    ("viewer", Answer(200, b" " * (4 * 2**20 + 2)), "answered more than 4194304 bytes", "active"),
    ("viewer", Answer(302, b"", {"Location": "http://127.0.0.1/"}), "answered 302, and redirects are not followed", "active"),
    ("upsertBucket", Answer(200, b'{"data": null, "errors": [{"message": "no seats left"}]}'), ": no seats left", "active"),
    ("upsertBucket", Answer(200, b'{"errors": "what\\u0000"}'), "upsertBucket answered: what ", "active"),
    ("upsertBucket", Answer(200, b'{"data": {"upsertBucket": {"bucket": {"name": "x"}}}}'), "another run than", "active"),
    ("upsertBucket", Answer(200, b'{"data": {"upsertBucket": []}}'), "another run than", "active"),
    ("upsertBucket", Answer(400, b'{"errors": [{"message": "bad project"}]}'), "answered 400: bad project", "failed"),
    ("upsertBucket", Answer(409, b'{"error": "deleted"}'), "409: deleted; a run that was deleted there cannot be", "failed"),
    ("file_stream", Answer(503, b""), "file_stream answered 503", "active"),
    ("file_stream", Answer(404, b"{}"), "file_stream answered 404", "active"),
    ("file_stream", Answer(200, b"[" * 100_000), f"file_stream answered no JSON object; {WHOSE}", "active"),
    ("file_stream", Answer(413, b"[]"), "file_stream answered 413", "failed"),
]


def test_an_answer_that_is_of_no_use_is_told_and_harms_no_task(tenant, placed, wandb, courier):
    taken = placed(server=wandb)
    (server,) = tenant.get(PATH).json()["data"]
    taken.report(points(0, [1]), taken.checkpoint({0: 1}))
    for of, answer, said, state in OF_NO_USE:
        wandb.fault = lambda call, _, of=of, answer=answer: answer if call == of else None
        assert courier.work_off_due() == 1
        seen = mirror_of(tenant, taken)
        assert (seen["state"], said in seen["error"], len(seen["error"]) <= 300) == (state, True, True), (said, seen)
        assert tenant.patch(f"{PATH}/{server['id']}", json={}).status_code == 200
    wandb.fault = lambda *_: None
    finished(taken)
    assert tenant.get(f"/v1/tasks/{taken.given.task_id}").json()["status"] == "succeeded"
    courier.work_off_due()
    seen = mirror_of(tenant, taken)
    assert (seen["state"], seen["error"], seen["points"]) == ("finished", None, 1)


@pytest.mark.parametrize("entity", [None, "team"])
def test_a_wrong_key_is_told_on_the_mirror_until_there_is_a_right_one(tenant, placed, wandb, courier, entity):
    server = added(tenant, wandb, credentials={"api_key": "of-somebody-else"})
    taken = placed(server=wandb, entity=entity)
    courier.work_off_due()
    seen = mirror_of(tenant, taken)
    assert (seen["state"], "answered 401: user is not logged in; is the API key right?" in seen["error"]) == ("active", True)
    assert seen["next_at"] is not None
    right = tenant.patch(
        f"{PATH}/{server['id']}", json={"credentials": {"api_key": "an-api-key-of-weights-and-biases-of-40-c"}}
    )
    assert right.status_code == 200, right.text
    courier.work_off_due()
    assert (mirror_of(tenant, taken)["error"], len(wandb.runs)) == (None, 2)


def test_an_entity_that_is_not_there_is_told(tenant, placed, wandb, courier):
    taken = placed(server=wandb, entity="nobody")
    courier.work_off_due()
    seen = mirror_of(tenant, taken)
    assert (seen["state"], seen["error"]) == ("active", "upsertBucket answered: entity nobody not found during upsertBucket")


def test_a_run_that_was_deleted_there_is_given_up(tenant, placed, wandb, courier, due):
    taken = placed(server=wandb)
    courier.work_off_due()
    for run in wandb.runs.values():
        run.deleted = True
    taken.report(points(0, [1]), taken.checkpoint({0: 1}))
    due()
    courier.work_off_due()
    seen = mirror_of(tenant, taken)
    assert (seen["state"], "file_stream answered 404" in seen["error"]) == ("active", True)
    assert all(run.lines == [] for run in wandb.runs.values())


@pytest.mark.parametrize(
    ("said", "hours"),
    [
        ("10000", 3),
        ("18000", 4),  # more than the longest wait that is granted
        ("14400000000", 3),  # no number of seconds
        ("soon", 3),
        ("0", 3),
        ("date", 4),
        ("Tue, 15 Nov 1994 08:12:31 GMT", 3),
        ("Tue, 15 Nov 9999 08:12:31 -0000", 4),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", 3),
        ("Mon, 01 Jan 2026 00:00:00 +999999999999999999", 3),
    ],
)
def test_a_server_that_asks_for_patience_is_left_alone(placed, wandb, courier, database, monkeypatch, said, hours):
    """A visit that fails is otherwise repeated after 3 hours."""
    monkeypatch.setattr(tracker_calls, "_LONGEST_WAIT", timedelta(hours=4))
    placed(server=wandb)
    with database.begin() as session:
        later = session.scalar(select(func.clock_timestamp())) + timedelta(hours=5)
    header = format_datetime(later) if said == "date" else said
    wandb.fault = lambda *_: Answer(429, b'{"error": "rate limit exceeded"}', {"Retry-After": header})
    courier.work_off_due()
    with database.begin() as session:
        wait = session.scalar(select(TaskMirror.next_at - func.clock_timestamp()))
        assert "answered 429: rate limit exceeded" in session.scalar(select(TaskMirror.error))
    assert round(wait / timedelta(hours=1)) == hours


def test_a_server_that_is_away_slows_no_task(tenant, placed, courier, due):
    """Nobody listens at its address; once somebody does, all that counts is there."""
    away = WandbServer(listens=False)
    taken = placed(server=away)
    taken.report(points(0, [1, 2]), taken.checkpoint({0: 2}))
    for _ in range(3):
        assert courier.work_off_due() == 1
        seen = mirror_of(tenant, taken)
        assert (seen["state"], "ConnectError" in seen["error"]) == ("active", True)
        due()
    finished(taken)
    assert tenant.get(f"/v1/tasks/{taken.given.task_id}").json()["status"] == "succeeded"
    away.server_activate()
    with serving(away):
        courier.work_off_due()
    assert away.run_of(taken.given.jobs[0].job_id).curve("train_loss") == [(1, 1.99), (2, 1.98)]
    assert away.wrong == []
    assert mirror_of(tenant, taken)["state"] == "finished"


def test_an_earlier_reconciler_harms_nothing(tenant, placed, wandb, courier, due, monkeypatch):
    """It takes every server for MLflow's: it says no key, its visit fails, and a later one finds all as it was."""
    taken = placed(server=wandb)
    taken.report(points(0, [1]), taken.checkpoint({0: 1}))

    def earlier(outbound, claimed, credentials):
        return MlflowTracker(MlflowClient(outbound, claimed.url, credentials))

    with monkeypatch.context() as patch:
        patch.setattr(mirror_courier, "_tracker", earlier)
        courier.work_off_due()
    assert "answered 404" in mirror_of(tenant, taken)["error"]
    assert [one.get("authorization") for one in wandb.headers] == [None]
    due()
    courier.work_off_due()
    assert wandb.run_of(taken.given.jobs[0].job_id).curve("train_loss") == [(1, 1.99)]
    assert mirror_of(tenant, taken)["error"] is None
