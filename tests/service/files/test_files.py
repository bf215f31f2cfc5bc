"""Files over HTTP: uploaded once, checked, listed, downloaded whole or in part, deleted unless a task needs them."""

import gzip
import hashlib
import json
from codecs import BOM_UTF8

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from service.files import actions
from service.tenants.api_keys import Principal
from tests.service.api import CHAT, PAIR, chat_rows, jsonl


def test_an_upload_comes_back_byte_for_byte(tenant):
    content = jsonl(CHAT, CHAT).rstrip(b"\n")
    made = tenant.upload(content, "my train.jsonl")
    assert made.status_code == 201, made.text
    file = made.json()
    assert {key: file[key] for key in ("object", "name", "format", "bytes", "rows")} == {
        "object": "file",
        "name": "my train.jsonl",
        "format": "chat",
        "bytes": len(content),
        "rows": 2,
    }
    assert file["sha256"] == hashlib.sha256(content).hexdigest()
    assert tenant.get(f"/v1/files/{file['id']}").json() == file
    assert tenant.get(f"/v1/files/{file['id']}/content").content == content


@pytest.mark.parametrize("order", ["name first", "file first"])
def test_the_name_may_be_said_apart_before_or_after_the_file(tenant, order):
    file = ("file", ("x.jsonl", jsonl(PAIR)))
    name = ("name", (None, "Rechnen für Anfänger"))
    response = tenant.post("/v1/files", files=[name, file] if order == "name first" else [file, name])
    assert response.json()["name"] == "Rechnen für Anfänger"


def test_every_mistake_is_named_by_line_and_field(tenant):
    content = jsonl(CHAT, {"messages": [{"role": "robot", "content": "x"}]}, PAIR)
    refused = tenant.upload(content)
    assert refused.status_code == 422
    assert refused.headers["content-type"] == "application/problem+json"
    problem = refused.json()
    assert problem["code"] == "file_invalid"
    assert problem["error_count"] == 3
    assert [(error["line"], error.get("field"), error["code"]) for error in problem["errors"]] == [
        (2, "messages[0].role", "wrong_role"),
        (2, "messages", "no_assistant_turn"),
        (3, None, "mixed_formats"),
    ]
    assert problem["detail"].startswith("line 2, messages[0].role: must be system, developer, user, assistant or tool, got")


def test_a_compressed_file_is_refused_with_what_to_do_and_nothing_is_kept(tenant, settings):
    content = gzip.compress(jsonl(*[CHAT] * 5000))
    plain = tenant.upload(content)
    assert (plain.status_code, plain.json()["code"], plain.json()["error_count"]) == (422, "file_invalid", 1)
    (error,) = plain.json()["errors"]
    assert error["message"] == "is gzip; a data set is JSON Lines in UTF-8, one example a line: decompress it first"
    theirs = tenant.post("/openai/v1/files", files={"file": ("rows.jsonl", content)}, data={"purpose": "fine-tune"})
    assert theirs.status_code == 400
    assert "is gzip; " in theirs.json()["error"]["message"]
    assert list((settings.storage_dir / "incoming").iterdir()) == []


@pytest.mark.parametrize(
    ("parts", "status", "field", "words"),
    [
        ({"name": (None, "x")}, 422, "file", "is required"),
        ({"file": ("x", jsonl(PAIR)), "purpose": (None, "fine-tune")}, 422, "purpose", "is not a part of an upload"),
        ([("file", ("x", jsonl(PAIR))), ("file", ("y", jsonl(PAIR)))], 422, "file", "was sent twice"),
        ({"file": ("x", jsonl(PAIR)), "name": (None, "a\nb")}, 422, "name", "printable"),
        ({"file": ("x", jsonl(PAIR)), "name": (None, "x" * 256)}, 422, "name", "1 to 255"),
        ({"file": ("x", jsonl(PAIR)), "name": (None, "x" * 5000)}, 422, "name", "more than 255"),
        ({"file": ("x", jsonl(PAIR)), "name": (None, b"\xff")}, 422, "name", "UTF-8"),
        ({"file": ("x", b"")}, 422, "file", "holds no rows"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_form_names_its_part(tenant, parts, status, field, words):
    response = tenant.post("/v1/files", files=parts)
    assert response.status_code == status, response.text
    assert response.json()["errors"][0]["field"] == field
    assert words in response.json()["errors"][0]["message"]


@pytest.mark.parametrize(
    ("content_type", "body", "words"),
    [
        ("text/plain", b"{}", "multipart/form-data with a part called file"),
        ("multipart/form-data", b"", "multipart/form-data with a part called file"),
        ("multipart/form-data; boundary=x", b"nonsense", "multipart body is broken"),
        ("multipart/form-data; boundary=x", b"--x\r\n", "ends before its last boundary"),
        ("multipart/form-data; boundary=x", b"--x\r\nA: " + b"b" * 9000, "header"),
    ],
)
def test_a_broken_body_is_said_to_be_so(tenant, content_type, body, words):
    response = tenant.post("/v1/files", content=body, headers={"content-type": content_type})
    assert response.status_code == 400
    assert words in response.json()["detail"]


def test_a_refused_file_leaves_nothing_in_storage(tenant, settings):
    before = sorted(path for path in settings.storage_dir.rglob("*") if path.is_file())
    assert tenant.upload(b"not json\n").status_code == 422
    assert tenant.post("/v1/files", files={"file": ("x", jsonl(PAIR)), "oops": (None, "x")}).status_code == 422
    assert sorted(path for path in settings.storage_dir.rglob("*") if path.is_file()) == before


def test_pages_of_files_hold_each_once(tenant):
    made = [tenant.file([PAIR | {"prompt": str(n)}]) for n in range(5)]
    seen, cursor = [], None
    while True:
        page = tenant.get("/v1/files", params={"limit": 2} | ({"cursor": cursor} if cursor else {})).json()
        assert page["object"] == "list"
        seen += [file["id"] for file in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == made[::-1]


def test_files_that_no_task_names_are_listed_apart(tenant):
    orphan, task = tenant.file([PAIR]), tenant.task()
    used = task["spec"]["dataset"]["file_id"]

    def listed(**query):
        return [file["id"] for file in tenant.get("/v1/files", params=query).json()["data"]]

    assert listed() == [used, orphan]
    assert (listed(unused=True), listed(unused=False)) == ([orphan], [used])
    tenant.post(f"/v1/tasks/{task['id']}/cancel")
    assert listed(unused=True) == [orphan]
    tenant.delete(f"/v1/tasks/{task['id']}")
    assert listed(unused=True) == [used, orphan]


def test_a_file_that_tasks_name_in_several_ways_is_listed_once(tenant):
    first, second = tenant.file(chat_rows(20)), tenant.file(chat_rows(21))
    for train, validation in ((first, second), (second, first)):
        dataset = {"file_id": train, "validation_file_id": validation}
        assert tenant.post("/v1/tasks", json=tenant.spec(train) | {"dataset": dataset}).status_code == 201
    page = tenant.get("/v1/files", params={"unused": False, "limit": 1}).json()
    rest = tenant.get("/v1/files", params={"unused": False, "limit": 1, "cursor": page["next_cursor"]}).json()
    assert [file["id"] for file in page["data"] + rest["data"]] == [second, first]
    assert tenant.get("/v1/files", params={"unused": True}).json()["data"] == []


def test_a_byte_order_mark_and_blank_lines_are_dropped(tenant):
    rows = jsonl(PAIR, PAIR)
    file = tenant.upload(BOM_UTF8 + b"\n" + rows.replace(b"\n", b"\n\n")).json()
    assert (file["rows"], file["bytes"], file["sha256"]) == (2, len(rows), hashlib.sha256(rows).hexdigest())
    assert tenant.get(f"/v1/files/{file['id']}/content").content == rows


@pytest.mark.parametrize("cursor", ["x", "é", "W10", "WzEsIDJd", "eyJhIjogMX0", "WyIyMDI2LTAxLTAxIiwgIngiXQ"])
def test_a_cursor_of_nobody_is_refused(tenant, cursor):
    response = tenant.get("/v1/files", params={"cursor": cursor})
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "cursor"


def test_a_download_can_be_continued_and_need_not_be_repeated(tenant):
    file_id = tenant.file(chat_rows(50))
    path = f"/v1/files/{file_id}/content"
    whole = tenant.get(path)
    etag = whole.headers["etag"]
    assert etag == f'"{hashlib.sha256(whole.content).hexdigest()}"'
    assert whole.headers["content-digest"].startswith("sha-256=:")
    assert tenant.get(path, headers={"if-none-match": etag}).status_code == 304
    size = len(whole.content)
    parts = {"bytes=10-19": slice(10, 20), "bytes=-5": slice(-5, None), "bytes=100-": slice(100, None)}
    parts |= {f"bytes=0-{'9' * 5000}": slice(None), f"bytes=-{'9' * 5000}": slice(None), f"bytes={'0' * 5000}7-8": slice(7, 9)}
    for asked, expected in ((asked, whole.content[part]) for asked, part in parts.items()):
        part = tenant.get(path, headers={"range": asked, "if-range": etag})
        assert (part.status_code, part.content) == (206, expected)
        assert part.headers["content-length"] == str(len(expected))
    assert tenant.get(path, headers={"range": "bytes=0-9", "if-range": '"other"'}).status_code == 200
    for outside in (size, "9" * 5000):
        beyond = tenant.get(path, headers={"range": f"bytes={outside}-"})
        assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{size}")


def test_a_deleted_file_is_gone_and_the_same_bytes_may_come_again(tenant):
    file_id = tenant.file([PAIR])
    assert tenant.delete(f"/v1/files/{file_id}").status_code == 204
    assert tenant.get(f"/v1/files/{file_id}").status_code == 404
    assert tenant.get(f"/v1/files/{file_id}/content").status_code == 404
    assert tenant.delete(f"/v1/files/{file_id}").status_code == 404
    assert tenant.get("/v1/files").json()["data"] == []
    assert tenant.file([PAIR]) != file_id


def test_a_file_that_a_task_needs_stays_until_the_task_has_ended(tenant):
    task = tenant.task()
    file_id = task["spec"]["dataset"]["file_id"]
    refused = tenant.delete(f"/v1/files/{file_id}")
    assert refused.status_code == 409
    assert refused.json()["code"] == "file_in_use"
    assert refused.json()["tasks"] == [task["id"]]
    assert task["id"] in refused.json()["detail"]
    tenant.post(f"/v1/tasks/{task['id']}/cancel")
    assert tenant.delete(f"/v1/files/{file_id}").status_code == 204


def test_limits_are_the_settings(new_database_url, settings_for, tmp_path, serve):
    made = settings_for(new_database_url, tmp_path, max_file_bytes=2000, max_file_rows=3, max_line_bytes=200)
    caller = serve(made)
    big = caller.upload(b"x" * 2001)
    assert (big.status_code, big.json()["code"], big.json()["limit"]) == (413, "file_too_large", 2000)
    rows = caller.upload(jsonl(PAIR) * 4)
    assert (rows.status_code, rows.json()["limit"]) == (413, 3)
    line = caller.upload(jsonl(PAIR | {"prompt": "x" * 200}))
    assert [error["code"] for error in line.json()["errors"]] == ["line_too_long"]


def test_what_is_shown_of_a_row_can_be_carried_by_json(tenant):
    content = b'{"messages": [{"role": "\\ud800", "content": "x"}], "\\udfff": 1}\n'
    refused = tenant.upload(content)
    assert refused.status_code == 422
    assert json.loads(refused.content)["errors"]


def test_a_full_disk_is_said_and_nothing_is_kept(tenant, storage, monkeypatch, settings):
    receive = storage.receive

    def onto_a_full_disk():
        incoming = receive()
        incoming._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115  (incoming closes it)
        return incoming

    monkeypatch.setattr(storage, "receive", onto_a_full_disk)
    refused = tenant.upload(jsonl(PAIR))
    assert (refused.status_code, refused.json()["code"]) == (507, "storage_full")
    assert list((settings.storage_dir / "incoming").iterdir()) == []


def test_a_file_that_a_task_is_being_made_of_waits_with_its_deletion(tenant, database):
    file_id = tenant.file([PAIR])
    principal = Principal(tenant.tenant_id, "key", frozenset())
    with database.begin() as making:
        assert set(actions.pin(making, principal, [file_id])) == {file_id}
        with database.begin() as deleting:
            deleting.execute(text("SET LOCAL lock_timeout = '100ms'"))
            with pytest.raises(OperationalError, match="lock timeout"):
                actions.delete(deleting, principal, file_id)
    assert tenant.delete(f"/v1/files/{file_id}").status_code == 204
