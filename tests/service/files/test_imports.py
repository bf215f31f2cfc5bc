"""Data sets by name: from a hub's data sets and from URLs, in the background, pinned and verified, each tenant for itself."""

import asyncio
import hashlib
import ipaddress
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from motet import AsyncClient, Client
from motet.api.errors import FileNotReady
from sqlalchemy import delete, select, text, update

from service.background.garbage_collection import sweep
from service.background.retention import Retention, forget
from service.database.engine import clock
from service.dependencies import Dependencies
from service.files.imports import claims
from service.files.imports.importer import Importer
from service.files.models import FileImport
from service.tenants.api_keys import Scope
from tests.hub.hub_process import COMMIT, TOKEN, HubProcess, hub_process
from tests.service.api import Caller, chat_rows, jsonl
from tests.service.live_server import Server, until

NAME = "datasets/org/rows"
SOURCE = f"hf://{NAME}"
ROWS = jsonl(*chat_rows(60))
LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[HubProcess]:
    with hub_process(tmp_path_factory.mktemp("hub")) as found:
        found.add(NAME, {"data/train.jsonl": ROWS, "README.md": b"# rows\n", "small/test.jsonl": jsonl(*chat_rows(3))})
        (found.folder / "plain").mkdir()
        (found.folder / "plain" / "rows.jsonl").write_bytes(ROWS)
        yield found


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory, hub):
    folder = tmp_path_factory.mktemp("service")
    return settings_for(database_url, folder, hf_endpoint=hub.url, import_networks=LOOPBACK, max_file_bytes=100_000)


@pytest.fixture(autouse=True)
def working(hub, database) -> Iterator[None]:
    yield
    hub.faults()
    with database.begin() as session:
        session.execute(delete(FileImport).where(FileImport.status == "importing"))


@pytest.fixture
def dependencies(settings) -> Iterator[Dependencies]:
    made = Dependencies.of(settings)
    yield made
    made.db.engine.dispose()


@pytest.fixture
def importer(dependencies) -> Importer:
    return Importer(dependencies)


def name(caller: Caller, source: str = SOURCE, **more: object):
    return caller.post("/v1/files", json={"source": source, **more})


def named(caller: Caller, source: str = SOURCE, **more: object) -> dict:
    answer = name(caller, source, **more)
    assert answer.status_code == 201, answer.text
    return answer.json()


def seen(caller: Caller, file_id: str) -> dict:
    answer = caller.get(f"/v1/files/{file_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer, field: str, code: str) -> str:
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    assert (error["field"], error["code"]) == (field, code), error
    return str(error["message"])


@pytest.fixture
def by_url(hub, monkeypatch):
    """The plain file's URL as https:// to the API and http:// on the wire, since the test's server has no certificate."""

    def url(path: str = "rows.jsonl", query: str = "") -> str:
        return f"{hub.url}/plain/{path}{query}"

    monkeypatch.setattr("service.files.imports.sources.BY_URL", ("http://", "https://"))
    return url


def test_a_file_of_the_hub_becomes_a_file_pinned_by_commit(tenant, importer, hub):
    before = len(hub.requests)
    made = named(tenant, path="data/train.jsonl")
    assert (made["status"], made["commit"], made["license"], made["gated"]) == ("importing", COMMIT, "apache-2.0", False)
    assert (made["total_bytes"], made["received_bytes"], made["rows"], made["format"]) == (len(ROWS), 0, None, None)
    assert tenant.get("/v1/files").json()["data"] == []
    assert [one["id"] for one in tenant.get("/v1/files?status=importing").json()["data"]] == [made["id"]]
    assert importer.run_due() == 1
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
    importer.run_due()
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
        ({"source": "s3://bucket/rows.jsonl"}, "source", "source_not_taken", "presigned https:// URL"),
        ({"source": "file:///etc/passwd"}, "source", "source_not_taken", "hf://datasets/organisation/name or https://"),
        ({"source": "https://u:p@host.example/x.jsonl"}, "source", "credentials_in_url", "presigned"),
        ({"source": "https://host.example/x.jsonl", "path": "a"}, "path", "only_for_the_hub", "hf://datasets"),
        ({"source": "https://host.example/x.parquet"}, "source", "format_not_taken", "is Parquet"),
        ({"source": "https://host.example/x.jsonl.gz"}, "source", "format_not_taken", "decompress it first"),
        ({"source": ""}, "source", "string_too_short", "at least 1"),
        ({"path": "a", "oops": 1}, "oops", "extra_forbidden", "not"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_bad_names_are_refused_in_words(tenant, body, field, code, words):
    assert words in refused(tenant.post("/v1/files", json={"source": SOURCE} | body), field, code)


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
    importer.run_due()
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
    importer.run_due()
    failed = seen(tenant, made["id"])  # the hub has no such commit any more
    assert (failed["status"], failed["error"]["code"]) == ("failed", "invalid")
    assert failed["error"]["errors"][0]["code"] == "source_refused"
    (folder / "hub.json").write_text(json.dumps({"commits": {"main": "d" * 40, "old": COMMIT}, "license": "mit"}))
    changed = named(tenant, "hf://datasets/org/moving", revision="old")
    (folder / "train.jsonl").write_bytes(ROWS)
    importer.run_due()  # other bytes than at the moment of the POST
    assert seen(tenant, changed["id"])["error"]["errors"][0]["code"] == "wrong_bytes"
    assert tenant.get("/v1/files").json()["data"] == []


def test_a_cut_transfer_is_continued_where_it_broke_off(tenant, importer, hub, by_url, no_pauses):
    for source in (SOURCE, by_url()):
        made = named(tenant, source, **({"split": "train"} if source == SOURCE else {}))
        before = len(hub.requests)
        hub.faults(cut_after=2500)
        importer.run_due()
        ranges = [line[1] for line in hub.requests[before:] if line[1] != "-"]
        assert ranges
        assert all(int(one.removeprefix("bytes=").rstrip("-")) % 2500 == 0 for one in ranges)
        assert seen(tenant, made["id"])["sha256"] == hashlib.sha256(ROWS).hexdigest()
        hub.faults()


@pytest.mark.parametrize("path", ["data/train.jsonl", "small/test.jsonl"])  # told by a sha256, and by git's id alone
def test_wrong_bytes_of_the_right_size_are_no_file(tenant, importer, hub, path):
    made = named(tenant, path=path)
    hub.faults(wrong=[path])
    importer.run_due()
    assert seen(tenant, made["id"])["error"]["errors"][0]["code"] == "wrong_bytes"


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr("service.files.imports.download._PAUSE_SECONDS", 0.0)


def test_a_source_that_gives_nothing_is_tried_again_and_at_last_failed(tenant, importer, hub, database, settings, no_pauses):
    made = named(tenant, split="train")
    hub.faults(cut_after=0)
    for attempt in range(1, claims.ATTEMPTS + 1):
        assert importer.run_due() == 1
        now = seen(tenant, made["id"])
        assert (now["attempts"], now["error"]["code"]) == (attempt, "source_unavailable")
        assert now["status"] == ("importing" if attempt < claims.ATTEMPTS else "failed")
        assert importer.run_due() == 0, "not before its time"
        with database.begin() as session:
            session.execute(update(FileImport).where(FileImport.id == made["id"]).values(next_at=clock(session)))
    assert list((settings.storage_dir / "incoming").iterdir()) == []
    assert tenant.delete(f"/v1/files/{made['id']}").status_code == 204
    assert tenant.get(f"/v1/files/{made['id']}").status_code == 404


def test_what_an_upload_is_refused_for_fails_an_import(tenant, importer, hub, settings):
    hub.add("datasets/org/bad", {"train.jsonl": jsonl(chat_rows(1)[0], {"text": 1}, {"prompt": "x"})})
    made = named(tenant, "hf://datasets/org/bad")
    before = sorted(path for path in settings.storage_dir.rglob("*") if path.is_file())
    importer.run_due()
    failed = seen(tenant, made["id"])
    assert (failed["status"], failed["error"]["code"]) == ("failed", "file_invalid")
    assert failed["error"]["error_count"] == len(failed["error"]["errors"]) >= 2
    assert {error["line"] for error in failed["error"]["errors"]} == {2, 3}
    assert sorted(path for path in settings.storage_dir.rglob("*") if path.is_file()) == before
    refusal = tenant.post("/v1/tasks", json=tenant.spec(made["id"])).json()["errors"][0]
    assert (refusal["field"], refusal["code"]) == ("dataset.file_id", "file_import_failed")


def test_what_is_too_big_is_refused_before_and_while_it_comes(tenant, importer, hub, by_url):
    hub.add("datasets/org/big", {"train.jsonl": jsonl(*chat_rows(2000))})
    big = name(tenant, "hf://datasets/org/big")
    assert (big.status_code, big.json()["code"], big.json()["limit"]) == (413, "file_too_large", 100_000)
    (hub.folder / "plain" / "grows.jsonl").write_bytes(ROWS)
    hub.faults(etag="none")
    made = named(tenant, by_url("grows.jsonl"))
    (hub.folder / "plain" / "grows.jsonl").write_bytes(ROWS * 40)
    importer.run_due()
    assert seen(tenant, made["id"])["error"]["errors"][0]["code"] == "wrong_bytes"


def test_a_url_is_imported_and_its_query_is_nobodys(tenant, importer, by_url, hub, database):
    made = named(tenant, by_url(query="?signature=secret"), name="mine.jsonl")
    assert (made["source"], made["name"], made["commit"]) == (by_url(), "mine.jsonl", None)
    with database.begin() as session:
        row = session.execute(text("SELECT f::text FROM file_imports f WHERE id = :id"), {"id": made["id"]}).scalar_one()
    assert "secret" not in row
    importer.run_due()
    assert seen(tenant, made["id"])["status"] == "ready"
    assert "?signature=secret" in hub.requests[-1][0]


def test_a_url_that_changes_meanwhile_is_refused(tenant, importer, hub, by_url):
    (hub.folder / "plain" / "changing.jsonl").write_bytes(ROWS)
    made = named(tenant, by_url("changing.jsonl"))
    (hub.folder / "plain" / "changing.jsonl").write_bytes(ROWS[::-1])
    importer.run_due()
    assert seen(tenant, made["id"])["error"]["errors"][0]["code"] == "source_changed"


@pytest.mark.parametrize("target", ["http://169.254.169.254/latest", "https://10.0.0.1/x", "http://[fe80::1]/x"])
def test_a_redirect_inside_is_refused_in_both_phases(tenant, importer, hub, by_url, target):
    made, of_hub = named(tenant, by_url()), named(tenant, split="train")
    hub.faults(redirect=target)
    assert "not public" in refused(name(tenant, by_url()), "source", "source_not_called")
    assert "MOTET_HUB_NETWORKS" in refused(name(tenant, split="train"), "source", "hub_redirects")
    importer.run_due()
    for one in (made, of_hub):
        assert seen(tenant, one["id"])["error"]["errors"][0]["code"] == "source_not_called"


def test_private_addresses_are_not_called_unless_allowed(hub, serve, settings_for, new_database_url, tmp_path, by_url):
    caller = serve(settings_for(new_database_url, tmp_path, hf_endpoint=hub.url))
    before = len(hub.requests)
    for url in (by_url(), hub.other_origin + "/plain/rows.jsonl", "https://169.254.169.254/latest", "https://[::1]/x"):
        assert "not public" in refused(name(caller, url), "source", "source_not_called")
    assert len(hub.requests) == before
    hub.faults(redirect=f"{hub.url}/cdn/{NAME}/data/train.jsonl")  # HF_ENDPOINT itself is the operator's choice
    assert name(caller, SOURCE, split="train", dry_run=True).status_code == 200


@pytest.mark.parametrize(
    ("headers", "code"), [({"Content-Encoding": "gzip"}, "encoded"), ({"Content-Encoding": "br"}, "encoded")]
)
def test_what_is_not_sent_as_it_is_is_refused(tenant, hub, by_url, headers, code):
    hub.faults(headers=headers)
    refused(name(tenant, by_url()), "source", code)


def test_the_quota_counts_an_import_before_it_is_downloaded(tenant, admin, importer, hub):
    def quota(size: int | None) -> None:
        admin.patch(f"/v1/admin/tenants/{tenant.tenant_id}", json={"quotas": {} if size is None else {"stored_bytes": size}})

    quota(len(ROWS) + 100)
    made = named(tenant, split="train")
    before = len(hub.requests)
    second = name(tenant, split="train")
    assert (second.status_code, second.json()["quota"], second.json()["used"]) == (403, "stored_bytes", len(ROWS))
    assert not [line for line in hub.requests[before:] if "/resolve/" in line[0] and line[1] == "-"]
    assert tenant.upload(ROWS).status_code == 403
    importer.run_due()
    assert seen(tenant, made["id"])["status"] == "ready"
    assert tenant.delete(f"/v1/files/{made['id']}").status_code == 204
    again = named(tenant, split="train")
    quota(100)
    importer.run_due()
    assert seen(tenant, again["id"])["error"]["code"] == "quota_exceeded"
    assert tenant.upload(jsonl(chat_rows(1)[0])).status_code == 201, "what failed reserves nothing"


def test_a_task_waits_for_nothing_but_is_refused_in_words(tenant, importer):
    made = named(tenant, split="train")
    spec = tenant.spec(made["id"])
    refusal = tenant.post("/v1/tasks", json=spec).json()["errors"][0]
    assert (refusal["field"], refusal["code"]) == ("dataset.file_id", "file_importing")
    assert f"GET /v1/files/{made['id']}" in refusal["message"]
    importer.run_due()
    assert tenant.post("/v1/tasks", json=spec).status_code == 201


def test_another_tenant_sees_nothing_of_an_import(tenant, new_tenant, importer):
    made, other = named(tenant, split="train"), new_tenant()
    assert other.get(f"/v1/files/{made['id']}").status_code == 404
    assert other.delete(f"/v1/files/{made['id']}").status_code == 404
    assert other.get("/v1/files?status=importing").json()["data"] == []
    refusal = other.post("/v1/tasks", json=other.spec(made["id"])).json()["errors"][0]
    assert refusal["code"] == "file_unknown"
    assert new_tenant(Scope.READ).post("/v1/files", json={"source": SOURCE}).status_code == 403
    importer.run_due()
    assert other.get(f"/v1/files/{made['id']}").status_code == 404


def test_an_idempotency_key_imports_once(tenant):
    key = {"Idempotency-Key": "once"}
    one, two = (tenant.post("/v1/files", json={"source": SOURCE, "split": "train"}, headers=key) for _ in range(2))
    assert one.json() == two.json()
    assert len(tenant.get("/v1/files?status=importing").json()["data"]) == 1
    other = tenant.post("/v1/files", json={"source": SOURCE, "split": "test"}, headers=key)
    assert other.json()["code"] == "idempotency_key_reused"


def test_an_import_that_is_deleted_meanwhile_leaves_nothing(tenant, importer, hub, database, settings, monkeypatch):
    monkeypatch.setattr("service.files.imports.importer._NOTE_SECONDS", 0.0)
    made = named(tenant, split="train")
    hub.faults(block=500, seconds=0.02)
    fetching = threading.Thread(target=importer.run_due)
    fetching.start()
    progress(tenant, made["id"])
    assert tenant.delete(f"/v1/files/{made['id']}").status_code == 204
    fetching.join()
    assert tenant.get(f"/v1/files/{made['id']}").status_code == 404
    assert tenant.get("/v1/files").json()["data"] == []
    assert list((settings.storage_dir / "incoming").iterdir()) == []


def progress(caller: Caller, file_id: str) -> None:
    """Wait until bytes of it have come."""
    pause = threading.Event()
    for _ in range(2000):
        if seen(caller, file_id)["received_bytes"]:
            return
        pause.wait(0.01)
    raise AssertionError("nothing came")


def test_an_import_whose_process_died_is_begun_anew_by_another(tenant, importer, dependencies, database):
    made = named(tenant, split="train")
    died = Importer(dependencies)._claims.take()
    assert died is not None
    assert importer.run_due() == 0, "it is another's"
    with database.begin() as session:
        session.execute(update(FileImport).where(FileImport.id == made["id"]).values(claimed_until=clock(session)))
    assert importer.run_due() == 1
    assert (seen(tenant, made["id"])["status"], seen(tenant, made["id"])["attempts"]) == ("ready", 2)
    with pytest.raises(claims.Lost):  # the dead one comes back
        Importer(dependencies)._claims.renew(died)


def test_a_stopping_process_gives_back_what_it_fetches(tenant, dependencies, hub, monkeypatch):
    monkeypatch.setattr("service.files.imports.importer._NOTE_SECONDS", 0.0)
    made = named(tenant, split="train")
    hub.faults(block=200, seconds=0.02)
    stopping = Importer(dependencies)
    stopping.wake()
    progress(tenant, made["id"])
    stopping.close(30)
    back = seen(tenant, made["id"])
    assert (back["status"], back["attempts"]) == ("importing", 0)
    hub.faults()
    Importer(dependencies).run_due()
    assert seen(tenant, made["id"])["status"] == "ready"


def test_ended_imports_are_forgotten_and_files_keep_where_they_came_from(tenant, importer, hub, database, dependencies):
    kept, gone, failed = named(tenant, split="train"), named(tenant, split="test"), named(tenant, split="train")
    hub_row = FileImport.id == failed["id"]
    with database.begin() as session:
        session.execute(update(FileImport).where(hub_row).values(pins={"sha256": "0" * 64}))
    importer.run_due()
    assert tenant.delete(f"/v1/files/{gone['id']}").status_code == 204
    forget(database, Retention())
    with database.begin() as session:
        session.execute(update(FileImport).values(ended_at=clock(session) - Retention().deleted * 2))
    assert sweep(database, dependencies.storage) >= 0
    forget(database, Retention())
    with database.begin() as session:
        left = set(session.scalars(select(FileImport.id).where(FileImport.tenant_id == tenant.tenant_id)))
    assert left == {kept["id"]}
    assert seen(tenant, kept["id"])["source"] == SOURCE


def test_the_clients_and_the_command_line_import(tenant, importer, hub, server: Server, tmp_path):
    hub.add("datasets/org/wrong", {"train.jsonl": b'{"prompt": "x"}\n'})
    key = {"MOTET_API_URL": server.url, "MOTET_API_KEY": tenant.key, "MOTET_STATE_DIR": str(tmp_path), "COLUMNS": "200"}

    def motet(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from motet.cli import main; main()", *words]
        return subprocess.Popen(command, env=os.environ | key, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    told, _ = motet("files", "add", SOURCE, "--split", "train", "--dry-run").communicate()
    assert f"{SOURCE}, data/train.jsonl at commit {COMMIT[:12]}: {len(ROWS):,} bytes; licence apache-2.0" in told
    waiting = motet("files", "add", SOURCE, "--split", "train", "--name", "mine.jsonl", "--json")
    until(importer.run_due)
    added, _ = waiting.communicate()
    assert (json.loads(added)["status"], json.loads(added)["name"], json.loads(added)["rows"]) == ("ready", "mine.jsonl", 60)
    failing = motet("files", "add", "hf://datasets/org/wrong")
    until(importer.run_due)
    said, refusal = failing.communicate()
    assert failing.returncode == 1
    assert "completion" in said
    assert "could not be imported" in " ".join(refusal.split())
    listed, _ = motet("files", "--imports").communicate()
    assert "is failed" in listed
    unset = motet("files", "add", SOURCE, "--with-token")
    assert "HF_TOKEN, which is not set" in " ".join(unset.communicate()[1].split())
    assert unset.returncode == 2

    async def beside() -> str:
        async with AsyncClient(server.url, tenant.key) as client:
            assert (await client.files.inspect(SOURCE, split="test")).bytes == len(jsonl(*chat_rows(3)))
            made = await client.files.add(SOURCE, split="test")
            await asyncio.to_thread(importer.run_due)
            return (await client.files.wait(made.id)).id

    with Client(server.url, tenant.key) as client:
        assert client.files.get(asyncio.run(beside())).rows == 3
        made = client.files.add("hf://datasets/org/wrong")
        assert [one.id for one in client.files.imports()] == [made.id]
        with pytest.raises(FileNotReady, match=r"is still imported after 0 s, 0 bytes"):
            client.files.wait(made.id, timeout=0)
        importer.run_due()
        with pytest.raises(FileNotReady, match="completion"):
            client.files.wait(made.id)
