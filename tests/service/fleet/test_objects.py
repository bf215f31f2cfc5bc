"""Uploads and downloads of a placement: granted, verified, and only what is its own."""

import hashlib
import threading

import pytest
from sqlalchemy import update

from contract.messages.upload_messages import UploadGrant
from service.storage.object_store import ObjectMissing
from service.tasks.models import Job
from tests.service.fleet.scripted import moved, points


@pytest.fixture
def placement(tenant, new_node, plan):
    node, task = new_node(), tenant.task()
    plan()
    taken = node.take(task["id"])
    taken.report(taken.attached(), moved(0, "warmup"), points(0, [1]))
    return taken


def grant(placement, content):
    said = {"fence": placement.given.fence, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    response = placement.call("POST", "uploads", said)
    assert response.status_code == 200, response.text
    return response.json()


def put(placement, granted, content, **more):
    """The upload that was granted: its status and, where it is refused, the code."""
    headers = granted["headers"] | more
    response = placement.node.client.put(granted["url"], content=content, headers=headers)
    return response.status_code, response.json()["code"] if response.content else None


def test_what_was_uploaded_can_be_fetched_once_it_is_committed(placement):
    content = b"checkpoint of " + placement.given.jobs[0].job_id.encode() + b" at 1"
    event = placement.checkpoint({0: 1})
    sha256 = event["jobs"]["0"]["sha256"]
    assert placement.call("GET", f"objects/{sha256}").json()["code"] == "object_unknown"  # stored, but not yet this task's
    placement.report(event)
    assert placement.call("GET", f"objects/{sha256}").content == content


@pytest.mark.parametrize("value", [3, {"n": 3}])
def test_a_job_with_a_damaged_checkpoint_keeps_none_from_the_others(placement, database, value):
    event = placement.checkpoint({0: 1, 1: 1})
    placement.report(moved(1, "warmup"), points(1, [1]), event)
    with database.begin() as session:
        session.execute(update(Job).where(Job.id == placement.given.jobs[0].job_id).values(checkpoint=value))
    found = [placement.call("GET", f"objects/{event['jobs'][job]['sha256']}").status_code for job in ("0", "1")]
    assert found == [404, 200]


def test_an_object_that_is_there_is_not_sent_again(placement):
    content = b"the same bytes"
    first = grant(placement, content)
    assert not first["exists"]
    for _ in range(2):  # an upload that is repeated, because its answer was lost, changes nothing
        assert put(placement, first, content) == (204, None)
    assert grant(placement, content) == UploadGrant(exists=True).model_dump()


@pytest.mark.parametrize("content", [b"other bytes!", b"short", b"", b"far more than was announced"])
def test_bytes_that_are_not_those_announced_are_refused(placement, storage, content):
    announced = b"these bytes."
    assert put(placement, grant(placement, announced), content)[0] in (413, 422)
    with pytest.raises(ObjectMissing):
        storage.size(hashlib.sha256(announced).hexdigest())


def test_a_grant_cannot_be_stretched_or_forged(placement):
    granted = grant(placement, b"small")
    token = granted["url"].rpartition("/")[2]
    longer = token.replace(".5.", ".5000.", 1)
    for forged in (longer, token[:-1], "x", "a.b.c.d"):
        response = placement.node.client.put(f"/internal/v1/objects/{forged}", content=b"small", headers=granted["headers"])
        assert (response.status_code, response.json()["code"]) == (403, "grant_refused")


def test_an_object_beyond_the_limit_gets_no_grant(placement):
    said = {"fence": placement.given.fence, "sha256": "a" * 64, "bytes": 2**40}
    response = placement.call("POST", "uploads", said)
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "bytes"


def test_uploads_at_once_of_one_object_all_succeed(placement):
    content = b"raced" * 100_000
    granted = grant(placement, content)
    codes = []
    threads = [threading.Thread(target=lambda: codes.append(put(placement, granted, content)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [204] * 4
    assert grant(placement, content)["exists"]


def test_a_placement_reads_its_own_data_set_and_no_other(tenant, placement):
    own = placement.call("GET", f"files/{placement.given.train_file.file_id}")
    assert own.status_code == 200
    assert hashlib.sha256(own.content).hexdigest() == placement.given.train_file.sha256
    other = tenant.file()
    assert placement.call("GET", f"files/{other}").status_code == 404
    placement.node.lost(placement)
    assert placement.call("GET", f"files/{placement.given.train_file.file_id}").json()["code"] == "fence_stale"


def test_an_upload_needs_the_token_of_whom_it_was_granted_to(placement, storage):
    content = b"granted"
    granted = grant(placement, content)
    assert placement.node.client.put(granted["url"], content=content).status_code == 401
    for headers in ({"Authorization": "Bearer pt_1_forged"}, {"X-Motet-Placement": "placement_other"}):
        assert put(placement, granted, content, **headers) == (401, "placement_token_refused")
    placement.node.lost(placement)
    assert put(placement, granted, content) == (409, "fence_stale")
    with pytest.raises(ObjectMissing):
        storage.size(hashlib.sha256(content).hexdigest())
