"""Files in parts: through any API process, in the order that is said at the end, counted to the quota, over after an hour."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from service.app import create_app
from service.background.garbage_collection import KEPT_SECONDS, sweep
from service.background.retention import UPLOADS_KEPT, Retention, forget
from service.database.engine import clock
from service.files.models import ChunkedUpload, ChunkedUploadPart, File
from service.files.uploads import actions
from service.http.openai_ids import own_id
from service.tenants.models import Tenant
from tests.service.api import Caller, chat_rows, jsonl

ROWS = jsonl(*chat_rows(30))
THIRDS = [ROWS[:700], ROWS[700:1500], ROWS[1500:]]  # none ends with its line
UPLOADS = "/openai/v1/uploads"


@pytest.fixture(scope="module")
def other_process(settings) -> Iterator[TestClient]:
    """Another API process on the same database and storage."""
    with TestClient(create_app(settings), raise_server_exceptions=False) as made:
        yield made


@pytest.fixture
def elsewhere(tenant, other_process) -> Caller:
    """The same tenant, at the other process."""
    return Caller(other_process, tenant.tenant_id, tenant.key)


@pytest.fixture
def expire(database) -> Callable[[str], None]:
    def end(upload_id: str, ago: timedelta = timedelta(0)) -> None:
        with database.begin() as session:
            passed = update(ChunkedUpload).where(ChunkedUpload.id == upload_id)
            session.execute(passed.values(expires_at=clock(session) - ago))

    return end


@pytest.fixture
def quota(database, tenant) -> Callable[[int | None], None]:
    def limit(bytes: int | None) -> None:
        with database.begin() as session:
            session.execute(update(Tenant).where(Tenant.id == tenant.tenant_id).values(stored_bytes_quota=bytes))

    return limit


def used(caller: Caller) -> int:
    return caller.get("/v1/quotas").json()["stored_bytes"]["used"]


def begin(caller: Caller, size: int = len(ROWS), **changes: Any) -> Any:
    wanted = {"bytes": size, "filename": "train.jsonl", "mime_type": "text/jsonl", "purpose": "fine-tune"}
    return caller.post(UPLOADS, json=wanted | changes)


def part(caller: Caller, upload_id: str, data: bytes, **how: Any) -> Any:
    return caller.post(f"{UPLOADS}/{upload_id}/parts", files={"data": ("blob", data)}, **how)


def complete(caller: Caller, upload_id: str, ids: Sequence[str], **more: Any) -> Any:
    return caller.post(f"{UPLOADS}/{upload_id}/complete", json={"part_ids": list(ids)} | more)


def sent(caller: Caller, parts: Sequence[bytes] = THIRDS) -> tuple[str, list[str]]:
    """A new upload with these parts: its id and theirs."""
    upload_id = begin(caller, sum(map(len, parts))).json()["id"]
    return upload_id, [part(caller, upload_id, one).json()["id"] for one in parts]


def code_of(response: Any) -> str:
    assert response.status_code == 400, response.text
    return response.json()["error"]["code"]


def test_parts_come_in_any_order_through_any_process(tenant, elsewhere):
    made = begin(tenant)
    assert made.status_code == 200, made.text
    upload = made.json()
    assert upload["expires_at"] - upload["created_at"] == 3600
    told = {name: upload[name] for name in ("object", "bytes", "filename", "purpose", "status", "file")}
    assert told == {
        "object": "upload",
        "bytes": len(ROWS),
        "filename": "train.jsonl",
        "purpose": "fine-tune",
        "status": "pending",
        "file": None,
    }
    last, first, middle = (
        part(caller, upload["id"], data).json()
        for caller, data in ((tenant, THIRDS[2]), (elsewhere, THIRDS[0]), (tenant, THIRDS[1]))
    )
    assert (first["object"], first["upload_id"]) == ("upload.part", upload["id"])
    ids = [one["id"] for one in (first, middle, last)]
    ended = complete(elsewhere, upload["id"], ids, md5=hashlib.md5(ROWS, usedforsecurity=False).hexdigest())
    assert ended.status_code == 200, ended.text
    assert ended.json() == upload | {"status": "completed", "file": ended.json()["file"]}
    file = ended.json()["file"]
    assert tenant.get(f"/openai/v1/files/{file['id']}").json() == file
    assert (file["bytes"], file["filename"]) == (len(ROWS), "train.jsonl")
    assert tenant.get(f"/openai/v1/files/{file['id']}/content").content == ROWS
    assert complete(tenant, upload["id"], ids).json() == ended.json(), "its answer may have been lost"
    assert code_of(complete(tenant, upload["id"], ids[::-1])) == "upload_ended"
    assert code_of(part(tenant, upload["id"], b"x")) == "upload_ended"
    assert code_of(tenant.post(f"{UPLOADS}/{upload['id']}/cancel")) == "upload_ended"
    assert tenant.delete(f"/openai/v1/files/{file['id']}").status_code == 200
    assert code_of(complete(tenant, upload["id"], ids)) == "upload_ended"


def test_requests_that_complete_at_once_make_one_file(tenant, elsewhere, database):
    upload_id, ids = sent(tenant)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda caller: complete(caller, upload_id, ids), [tenant, elsewhere] * 2))
    assert {answer.status_code for answer in answers} == {200}
    (file_id,) = {answer.json()["file"]["id"] for answer in answers}
    with database.begin() as session:
        assert list(session.scalars(select(File.id).where(File.tenant_id == tenant.tenant_id))) == [own_id(file_id)]


def test_a_repeated_part_under_a_key_is_one_part(tenant, database):
    upload_id = begin(tenant).json()["id"]
    first, again = (part(tenant, upload_id, ROWS, headers={"idempotency-key": "once"}) for _ in range(2))
    assert first.json() == again.json()
    with database.begin() as session:
        assert session.get_one(ChunkedUpload, upload_id).part_count == 1


def test_a_part_sent_again_after_the_end_is_answered_as_it_was(tenant):
    upload_id, key = begin(tenant).json()["id"], {"idempotency-key": "lost"}
    first = part(tenant, upload_id, ROWS, headers=key)
    assert complete(tenant, upload_id, [first.json()["id"]]).status_code == 200
    again = part(tenant, upload_id, ROWS, headers=key)
    assert (again.status_code, again.json()) == (200, first.json())
    assert code_of(part(tenant, upload_id, b"another", headers=key)) == "idempotency_key_reused"
    assert code_of(part(tenant, upload_id, ROWS, headers={"idempotency-key": "new"})) == "upload_ended"


def test_the_order_is_what_is_said(tenant):
    upload_id, ids = sent(tenant)
    assert code_of(complete(tenant, upload_id, [ids[1], ids[0], ids[2]])) == "file_invalid"
    assert complete(tenant, upload_id, ids).status_code == 200, "the upload has not ended by that"


@pytest.mark.parametrize(
    ("ids", "more", "code", "param"),
    [
        ((0, 1), {}, "bytes_mismatch", "part_ids"),
        ((0, 1, 1), {}, "repeated", "part_ids[2]"),
        ((0, 1, None), {}, "not_found", "part_ids[2]"),
        ((0, 1, 2), {"md5": "0" * 32}, "md5_mismatch", "md5"),
        ((0, 1, 2), {"md5": "0" * 31}, None, "md5"),
        ((), {}, None, "part_ids"),
    ],
)
def test_what_does_not_make_the_file_is_refused(tenant, ids, more, code, param):
    upload_id, own = sent(tenant)
    _, (foreign,) = sent(tenant, [ROWS])
    error = complete(tenant, upload_id, [foreign if place is None else own[place] for place in ids], **more).json()["error"]
    assert error["param"] == param, error
    assert code is None or error["code"] == code, error
    assert complete(tenant, upload_id, own).status_code == 200


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"purpose": "vision"}, "purpose"),
        ({"bytes": 0}, "bytes"),
        ({"bytes": True}, "bytes"),
        ({"bytes": 2**50}, "bytes"),
        ({"filename": ".."}, "filename"),
        ({"mime_type": ""}, "mime_type"),
        ({"expires_after": {"anchor": "created_at", "seconds": 60}}, "expires_after.seconds"),
        ({"part_size": 3}, "part_size"),
    ],
)
def test_an_upload_that_cannot_be_is_refused(tenant, changes, param):
    response = begin(tenant, **changes)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_a_part_is_bounded(tenant, monkeypatch):
    upload_id = begin(tenant, 100).json()["id"]
    refused = part(tenant, upload_id, b"x" * 101)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "part_too_large")
    assert code_of(part(tenant, upload_id, b"")) == "empty_part"
    missing = tenant.post(f"{UPLOADS}/{upload_id}/parts", files={"file": ("blob", b"x")})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "file")
    assert tenant.post(f"{UPLOADS}/{upload_id}/parts", json={}).status_code == 400
    assert [part(tenant, upload_id, b"x" * size).status_code for size in (100, 60, 60, 40, 1)] == [200, 200, 413, 200, 413]
    monkeypatch.setattr(actions, "PART_BYTES", 50)
    upload_id = begin(tenant, 100).json()["id"]
    assert [part(tenant, upload_id, b"x" * size).status_code for size in (51, 50)] == [413, 200]
    monkeypatch.setattr(actions, "MOST_PARTS", 1)
    assert code_of(part(tenant, upload_id, b"x")) == "too_many_parts"


def test_its_bytes_count_to_the_quota_from_its_beginning_on(tenant, quota, expire):
    quota(2 * len(ROWS))
    upload_id, ids = sent(tenant)
    assert used(tenant) == len(ROWS)
    refused = begin(tenant, len(ROWS) + 1)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "quota_exceeded")
    quota(len(ROWS) + 700)
    assert part(tenant, upload_id, THIRDS[0]).status_code == 200, "sent again"
    assert used(tenant) == len(ROWS) + 700
    assert part(tenant, upload_id, THIRDS[0]).json()["error"]["code"] == "quota_exceeded"
    quota(len(ROWS))
    assert complete(tenant, upload_id, ids).status_code == 200
    assert used(tenant) == len(ROWS), "its file's alone"
    quota(None)
    upload_id, _ = sent(tenant)
    assert used(tenant) == 2 * len(ROWS)
    assert tenant.post(f"{UPLOADS}/{upload_id}/cancel").json()["status"] == "cancelled"
    assert tenant.post(f"{UPLOADS}/{upload_id}/cancel").json()["status"] == "cancelled"
    assert used(tenant) == len(ROWS)
    upload_id, _ = sent(tenant)
    expire(upload_id)
    assert used(tenant) == len(ROWS)


def test_it_is_over_after_an_hour(tenant, expire):
    upload_id, ids = sent(tenant)
    expire(upload_id)
    for response in (
        part(tenant, upload_id, b"x"),
        complete(tenant, upload_id, ids),
        tenant.post(f"{UPLOADS}/{upload_id}/cancel"),
    ):
        assert code_of(response) == "upload_ended"
        assert "is expired" in response.json()["error"]["message"]


def test_nothing_is_left_of_what_ended(tenant, database, storage, expire):
    (expired, _), (cancelled, _), (completed, ids), (going_on, parts) = (sent(tenant, how) for how in [THIRDS] * 3 + [[ROWS]])
    assert complete(tenant, completed, ids).status_code == 200
    expire(expired, UPLOADS_KEPT + timedelta(minutes=1))
    tenant.post(f"{UPLOADS}/{cancelled}/cancel")
    forget(database, Retention())
    with database.begin() as session:
        kept = {row.id: row.upload_id for row in session.scalars(select(ChunkedUploadPart))}
        assert expired not in kept.values()
        assert not {cancelled, completed} & {*kept.values()}
        assert kept[parts[0]] == going_on
        assert session.get(ChunkedUpload, expired) is None
    hashes = [hashlib.sha256(one).hexdigest() for one in THIRDS]
    assert all(map(storage.exists, hashes))
    before = time.time() - KEPT_SECONDS - 60
    for sha256 in hashes:
        os.utime(storage.path(sha256), (before, before))
    sweep(database, storage)
    assert not any(map(storage.exists, hashes))
    assert complete(tenant, going_on, parts).status_code == 200


def test_a_part_that_storage_lost_is_named(tenant, storage):
    upload_id, ids = sent(tenant)
    storage.delete(hashlib.sha256(THIRDS[1]).hexdigest())
    refused = complete(tenant, upload_id, ids)
    assert code_of(refused) == "part_lost"
    assert ids[1] in refused.json()["error"]["message"]
    ids[1] = part(tenant, upload_id, THIRDS[1]).json()["id"]
    assert complete(tenant, upload_id, ids).status_code == 200


def test_its_file_may_expire(tenant, database):
    upload_id = begin(tenant, expires_after={"anchor": "created_at", "seconds": 7200}).json()["id"]
    file = complete(tenant, upload_id, [part(tenant, upload_id, ROWS).json()["id"]]).json()["file"]
    assert file["expires_at"] - file["created_at"] == 7200
    with database.begin() as session:
        kept = session.scalars(select(File).where(File.expires_at.is_not(None)).order_by(File.created_at.desc())).first()
        assert kept is not None
        assert kept.expires_at - kept.created_at == timedelta(seconds=7200), "of one moment, or seconds may differ by one"
