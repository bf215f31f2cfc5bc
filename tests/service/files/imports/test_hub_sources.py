"""Data sets of a hub by name: pinned by commit, verified by their bytes, with tokens that nobody can read."""

import hashlib
import json

import pytest
from sqlalchemy import text

from service.files.models import FileImport
from tests.hub.hub_process import COMMIT, TOKEN
from tests.service.api import Caller, chat_rows, jsonl
from tests.service.files.imports.named import ROWS, SOURCE, name, named, refused, seen


def test_a_file_of_the_hub_becomes_a_file_pinned_by_commit(tenant, importer, hub):
    before = len(hub.requests)
    made = named(tenant, path="data/train.jsonl")
    assert (made["status"], made["commit"], made["license"], made["gated"]) == ("importing", COMMIT, "apache-2.0", False)
    assert (made["total_bytes"], made["received_bytes"], made["rows"], made["format"]) == (len(ROWS), 0, None, None)
    assert tenant.get("/v1/files").json()["data"] == []
    assert [one["id"] for one in tenant.get("/v1/files?status=importing").json()["data"]] == [made["id"]]
    assert importer.work_off_due() == 1
    ready = seen(tenant, made["id"])
    assert (ready["status"], ready["rows"], ready["format"], ready["name"]) == ("ready", 60, "chat", "train.jsonl")
    assert (ready["sha256"], ready["received_bytes"]) == (hashlib.sha256(ROWS).hexdigest(), len(ROWS))
    assert tenant.get(f"/v1/files/{made['id']}/content").content == ROWS
    (listed,) = tenant.get("/v1/files").json()["data"]
    assert (listed["id"], set(listed)) == (made["id"], set(tenant.upload(ROWS).json())), "a file as any other"
    assert tenant.get("/v1/files?status=importing").json()["data"] == []
    fetched = [line for line in hub.requests[before:] if "/resolve/" in line[0]]
    assert fetched
    assert all(COMMIT in line[0] and line[2] == "anonymous" for line in fetched)
    task = tenant.post("/v1/tasks", json=tenant.spec(made["id"]))
    assert task.status_code == 201, task.text


@pytest.mark.parametrize(
    ("asked", "rows"), [({"split": "train"}, 60), ({"split": "test"}, 3), ({"path": "small/test.jsonl", "revision": COMMIT}, 3)]
)
def test_a_split_or_a_path_names_the_file(tenant, importer, asked, rows):
    made = named(tenant, **asked)
    importer.work_off_due()
    assert seen(tenant, made["id"])["rows"] == rows


def test_a_dry_run_tells_all_and_stores_nothing(tenant, database):
    told = name(tenant, split="train", dry_run=True)
    assert told.status_code == 200, told.text
    assert told.json() | {"revision": None} == {
        "object": "found_file",
        "name": "train.jsonl",
        "source": SOURCE,
        "path": "data/train.jsonl",
        "revision": None,
        "commit": COMMIT,
        "license": "apache-2.0",
        "gated": False,
        "bytes": len(ROWS),
        "sha256": hashlib.sha256(ROWS).hexdigest(),
        "dry_run": True,
    }
    assert tenant.get("/v1/files?status=importing").json()["data"] == []


@pytest.mark.parametrize(
    ("body", "field", "code", "words"),
    [
        ({}, "path", "several_files", "name one of them as `path`: data/train.jsonl, small/test.jsonl"),
        ({"path": "data/none.jsonl"}, "path", "file_unknown", "it holds README.md, data/train.jsonl"),
        ({"split": "validation"}, "split", "file_unknown", "no split 'validation'"),
        ({"path": "data/train.jsonl", "split": "train"}, "split", "path_and_split", "goes without `path`"),
        ({"path": "data/train.jsonl", "revision": "v9"}, "revision", "revision_unknown", "has no revision"),
        ({"source": "hf://datasets/org/nothing"}, "source", "hub_unknown", "has no dataset org/nothing"),
        ({"source": "hf://datasets/org/rows/data"}, "source", "not_a_repository", "named in `path` or `split`"),
        ({"source": "hf://org/rows"}, "source", "not_a_dataset", "POST /v1/models"),
        ({"source": "file:///etc/passwd"}, "source", "source_not_taken", "hf://datasets/organisation/name, https://"),
        ({"source": "s3://rows.jsonl"}, "source", "not_an_object", "s3://bucket/key"),
        ({"source": "s3://../rows.jsonl"}, "source", "not_an_object", "s3://bucket/key"),
        ({"source": "s3://x/rows.jsonl"}, "source", "not_an_object", "3 to 63 characters"),
        ({"source": "s3://bucket/../rows.jsonl"}, "source", "not_an_object", "no empty part"),
        ({"source": "s3://bucket/rows.csv"}, "source", "format_not_taken", "is CSV"),
        ({"source": "s3://bucket/rows.jsonl", "token": "t"}, "token", "only_for_the_hub", "hf://datasets"),
        (
            {"source": "s3://bucket/rows.jsonl", "access_key_id": "k"},
            "secret_access_key",
            "incomplete_keys",
            "both, or neither",
        ),
        (
            {"source": "s3://bucket/rows.jsonl", "secret_access_key": "s"},
            "access_key_id",
            "incomplete_keys",
            "both, or neither",
        ),
        ({"source": "s3://bucket/rows.jsonl", "session_token": "s"}, "session_token", "incomplete_keys", "access_key_id"),
        ({"source": "s3://bucket/rows.jsonl", "endpoint": "http://10.0.0.1"}, "source", "source_not_called", "not public"),
        ({"path": "data/train.jsonl", "region": "eu-west-1"}, "region", "only_for_buckets", "s3://bucket/key"),
        ({"source": "https://u:p@host.example/x.jsonl"}, "source", "credentials_in_url", "presigned"),
        ({"source": "https://host.example/x.jsonl", "path": "a"}, "path", "only_for_the_hub", "hf://datasets"),
        ({"source": "https://host.example/x.parquet"}, "source", "format_not_taken", "is Parquet"),
        ({"source": "https://host.example/x.jsonl.gz"}, "source", "format_not_taken", "decompress it first"),
        ({"source": ""}, "source", "string_too_short", "must not be empty"),
        ({"path": "a", "oops": 1}, "oops", "extra_forbidden", "not"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_bad_names_are_refused_in_words(tenant, body, field, code, words):
    assert words in refused(tenant.post("/v1/files", json={"source": SOURCE} | body), field, code)


PATHS = ("../secret", "data/../../train.jsonl", "/data/train.jsonl", "data//train.jsonl", "./train.jsonl", "data/", "..")
REVISIONS = ("a/../b", "a..b", "a//b", "a/", "a.lock", "a.", "a/.b")
ENCODED = ("%2e%2e/train.jsonl", "data%2F..%2Ftrain.jsonl", "..\\train.jsonl", "%2e%2e%5Ctrain.jsonl")


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        *(({"path": path}, "path", "not_a_path") for path in PATHS + ENCODED),
        *(({"revision": revision}, "revision", "revision_unknown") for revision in REVISIONS),
        ({"path": "data/train.jsonl", "split": "train"}, "split", "path_and_split"),
        ({"path": "data/train.parquet"}, "source", "format_not_taken"),
    ],
)
def test_what_no_repository_holds_is_refused_before_the_hub_is_asked(tenant, hub, body, field, code):
    hub.faults(down=True)
    before = len(hub.requests)
    refused(tenant.post("/v1/files", json={"source": SOURCE} | body), field, code)
    assert len(hub.requests) == before


def test_other_formats_say_what_to_convert(tenant, hub):
    hub.add("datasets/org/tables", {"data/train-00000-of-00001.parquet": b"PAR1...", "disguised.jsonl": b"PAR1 and more"})
    for asked in ({"split": "train"}, {"path": "disguised.jsonl"}):
        assert "to_json('train.jsonl')" in refused(
            name(tenant, "hf://datasets/org/tables", **asked), "source", "format_not_taken"
        )


def test_a_gated_data_set_needs_a_token_which_nobody_can_read(tenant, new_tenant, importer, hub, database, caplog):
    caplog.set_level("DEBUG")
    gated = "hf://datasets/org/gated"
    hub.add("datasets/org/gated", {"train.jsonl": ROWS}, gated="manual")
    assert "send a token of that account as `token`" in refused(name(tenant, gated), "source", "hub_gated")
    assert "may not read" not in refused(name(tenant, gated, token="hf_wrong"), "source", "hub_gated")
    answer = tenant.post("/v1/files", json={"source": gated, "token": TOKEN}, headers={"Idempotency-Key": "gated"})
    assert answer.status_code == 201, answer.text
    assert answer.json()["gated"] is True
    with database.begin() as session:
        tables = list(session.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")))
        for table in tables:
            rows = session.execute(text(f'SELECT t::text FROM "{table}" t')).scalars()
            assert not any(TOKEN in row or TOKEN.encode().hex() in row for row in rows), table
    importer.work_off_due()
    assert seen(tenant, answer.json()["id"])["status"] == "ready"
    with database.begin() as session:
        assert session.get_one(FileImport, answer.json()["id"]).sealed is None
    assert TOKEN not in caplog.text
    assert TOKEN not in json.dumps([seen(tenant, answer.json()["id"]), tenant.get("/v1/audit").json()])
    refused(name(new_tenant(), gated), "source", "hub_gated")


def test_the_services_own_token_is_for_admins_alone(settings, hub, serve, new_database_url, settings_for, tmp_path):
    hub.add("datasets/org/private", {"train.jsonl": ROWS}, private=True)
    caller = serve(settings_for(new_database_url, tmp_path, hf_endpoint=hub.url, hf_token=TOKEN))
    assert name(caller, "hf://datasets/org/private", dry_run=True).status_code == 200
    keys = caller.post("/v1/keys", json={"name": "less", "scopes": ["read", "write"]}).json()
    less = Caller(caller.client, caller.tenant_id, keys["secret"])
    assert "has no `token`" in refused(name(less, "hf://datasets/org/private", dry_run=True), "source", "hub_unknown")


def test_a_moved_revision_changes_nothing_that_was_named(tenant, importer, hub):
    folder = hub.add("datasets/org/moving", {"train.jsonl": ROWS})
    made = named(tenant, "hf://datasets/org/moving")
    (folder / "hub.json").write_text(json.dumps({"commits": {"main": "d" * 40}, "license": "mit"}))
    (folder / "train.jsonl").write_bytes(jsonl(*chat_rows(2)) * 30)
    importer.work_off_due()
    failed = seen(tenant, made["id"])  # the hub has no such commit any more
    assert (failed["status"], failed["error"]["code"]) == ("failed", "invalid")
    assert failed["error"]["errors"][0]["code"] == "source_refused"
    (folder / "hub.json").write_text(json.dumps({"commits": {"main": "d" * 40, "old": COMMIT}, "license": "mit"}))
    changed = named(tenant, "hf://datasets/org/moving", revision="old")
    (folder / "train.jsonl").write_bytes(ROWS)
    importer.work_off_due()  # other bytes than at the moment of the POST
    assert seen(tenant, changed["id"])["error"]["errors"][0]["code"] == "wrong_bytes"
    assert tenant.get("/v1/files").json()["data"] == []


def test_a_cut_transfer_is_continued_where_it_broke_off(tenant, importer, hub, by_url, no_pauses):
    for source in (SOURCE, by_url()):
        made = named(tenant, source, **({"split": "train"} if source == SOURCE else {}))
        before = len(hub.requests)
        hub.faults(cut_after=2500)
        importer.work_off_due()
        ranges = [line[1] for line in hub.requests[before:] if line[1] != "-"]
        assert ranges
        assert all(int(one.removeprefix("bytes=").rstrip("-")) % 2500 == 0 for one in ranges)
        assert seen(tenant, made["id"])["sha256"] == hashlib.sha256(ROWS).hexdigest()
        hub.faults()


@pytest.mark.parametrize("path", ["data/train.jsonl", "small/test.jsonl"])  # told by a sha256, and by git's id alone
def test_wrong_bytes_of_the_right_size_are_no_file(tenant, importer, hub, path):
    made = named(tenant, path=path)
    hub.faults(wrong=[path])
    importer.work_off_due()
    assert seen(tenant, made["id"])["error"]["errors"][0]["code"] == "wrong_bytes"
