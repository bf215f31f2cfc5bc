"""A placement's token opens nothing once its placement, its task or its lease has ended, and a forged one asks no database."""

from datetime import timedelta

import pytest
from sqlalchemy import Engine, event, select

from service.database.checked_json import required
from service.database.engine import clock
from service.fleet.models import Placement
from service.tasks.models import Job
from tests.service.fleet.rows import dump
from tests.service.fleet.scripted import completed, moved, points, throughput


@pytest.fixture
def placement(tenant, new_node, plan):
    """Placed, taken up, and with a checkpoint of its first job."""
    node, task = new_node(), tenant.task()
    plan()
    taken = node.take(task["id"])
    taken.node.leases(taken.pulse())
    taken.report(taken.attached(), moved(0, "warmup"), moved(1, "warmup"), points(0, [1]))
    taken.report(taken.checkpoint({0: 1}))
    return taken


@pytest.fixture
def opened(database, placement):
    """What each door answers to the placement's token: its code, or "open". A report is a point, which nobody sends late."""
    file_id, fence = placement.given.train_file.file_id, placement.given.fence
    with database.begin() as session:
        job = session.scalars(select(Job).where(Job.task_id == placement.given.task_id).order_by(Job.index)).first()
        checkpoint = required(job.checkpoint).sha256

    def ask() -> dict[str, str]:
        asked = {
            "file": placement.call("GET", f"files/{file_id}"),
            "checkpoint": placement.call("GET", f"objects/{checkpoint}"),
            "upload": placement.call("POST", "uploads", {"fence": fence, "sha256": "a" * 64, "bytes": 3}),
            "report": placement.send(points(1, [placement.seq])),
        }
        return {door: "open" if answer.is_success else answer.json()["code"] for door, answer in asked.items()}

    return ask


def all_say(code: str) -> dict[str, str]:
    return dict.fromkeys(("file", "checkpoint", "upload", "report"), code)


def finish(placement) -> None:
    placement.report(placement.adapter(0, 1.5), completed(0, loss=1.5), placement.adapter(1, 1.4), completed(1, loss=1.4))


def expire(database) -> None:
    with database.begin() as session:
        for row in session.scalars(select(Placement)):
            row.lease_until = clock(session) - timedelta(milliseconds=1)


def test_a_live_placements_token_opens_all(opened):
    assert opened() == all_say("open")


@pytest.mark.parametrize("verb", ["cancel", "pause"])
def test_not_once_the_task_was_stopped(tenant, placement, opened, database, verb):
    assert tenant.post(f"/v1/tasks/{placement.given.task_id}/{verb}").status_code == 200
    if verb == "pause":  # it may bring its jobs to safety first
        assert opened() == all_say("open")
        placement.seq += 1
        placement.report({"kind": "detached"})
    before = dump(database)
    assert opened() == all_say("fence_stale")
    assert dump(database) == before


def test_not_once_the_lease_is_over_though_nobody_has_noticed(database, placement, opened):
    expire(database)
    before = dump(database)
    assert opened() == all_say("fence_stale")
    assert "its lease is over" in placement.send(points(1, [9])).json()["detail"]
    assert dump(database) == before


def test_not_once_the_last_job_ended_but_for_the_last_words(database, placement, opened):
    """What was trained until then is still told and billed, and the last report is answered again where its answer got lost."""
    finish(placement)
    last = placement.seq - 1
    before = dump(database)
    assert opened() == all_say("fence_stale")
    assert placement.send({"kind": "base_evaluated", "val_loss": 1.0}).json()["code"] == "fence_stale"
    assert placement.send(completed(1), seq=last).json() == {"seq": last}
    assert dump(database) == before
    placement.report(throughput(steps=1, tokens=50), {"kind": "detached"})
    with database.begin() as session:
        assert session.get_one(Placement, placement.id).tokens == 50
    expire(database)
    for late in (placement.send(throughput()), placement.send(completed(1), seq=last)):
        assert late.json()["code"] == "fence_stale"


@pytest.mark.parametrize(
    "forge",
    [
        lambda token: token[:-1],
        lambda token: token.replace("pt_", "pt_1", 1),
        lambda token: "pt_" + "9" * 5000 + "_x",
        lambda token: "pt_1_",
        lambda token: "pt_-1_x",
        lambda token: "pt_\u00b2_x".encode("utf-8").decode("latin-1"),
        lambda token: "nothing of the kind",
        lambda token: "",
    ],
)
def test_a_forged_token_costs_no_connection(placement, forge):
    statements: list[str] = []
    event.listen(Engine, "before_cursor_execute", count := lambda *given: statements.append(given[2]))
    try:
        headers = {"Authorization": b"Bearer " + forge(placement.given.token).encode("latin-1")}
        answer = placement.node.client.get(f"/internal/v1/placements/{placement.id}/files/x", headers=headers)
    finally:
        event.remove(Engine, "before_cursor_execute", count)
    assert (answer.status_code, answer.json()["code"]) == (401, "placement_token_refused")
    assert statements == []
