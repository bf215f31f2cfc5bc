"""An import from its name to its end: retries, limits, quotas, tenants, processes that die, clients."""

import asyncio
import json
import os
import subprocess
import sys
import threading

import pytest
from motet import AsyncClient, Client
from motet.api.errors import FileNotReady
from sqlalchemy import select, update

from service.background.garbage_collection import sweep
from service.background.retention import Retention, forget
from service.database.claimed_rows import ATTEMPTS, Lost
from service.database.engine import clock
from service.files.imports.importer import Importer
from service.files.models import FileImport
from service.tenants.api_keys import Scope
from tests.hub.hub_process import COMMIT
from tests.service.api import Caller, chat_rows, jsonl
from tests.service.files.imports.named import ROWS, SOURCE, name, named, seen
from tests.service.live_server import Server, until


def test_a_source_that_gives_nothing_is_tried_again_and_at_last_failed(tenant, importer, hub, database, settings, no_pauses):
    made = named(tenant, split="train")
    hub.faults(cut_after=0)
    for attempt in range(1, ATTEMPTS + 1):
        assert importer.work_off_due() == 1
        now = seen(tenant, made["id"])
        assert (now["attempts"], now["error"]["code"]) == (attempt, "source_unavailable")
        assert now["status"] == ("importing" if attempt < ATTEMPTS else "failed")
        assert importer.work_off_due() == 0, "not before its time"
        with database.begin() as session:
            session.execute(update(FileImport).where(FileImport.id == made["id"]).values(next_at=clock(session)))
    assert list((settings.storage_dir / "incoming").iterdir()) == []
    assert tenant.delete(f"/v1/files/{made['id']}").status_code == 204
    assert tenant.get(f"/v1/files/{made['id']}").status_code == 404


def test_what_an_upload_is_refused_for_fails_an_import(tenant, importer, hub, settings):
    hub.add("datasets/org/bad", {"train.jsonl": jsonl(chat_rows(1)[0], {"text": 1}, {"prompt": "x"})})
    made = named(tenant, "hf://datasets/org/bad")
    before = sorted(path for path in settings.storage_dir.rglob("*") if path.is_file())
    importer.work_off_due()
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
    importer.work_off_due()
    assert seen(tenant, made["id"])["error"]["errors"][0]["code"] == "wrong_bytes"


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
    importer.work_off_due()
    assert seen(tenant, made["id"])["status"] == "ready"
    assert tenant.delete(f"/v1/files/{made['id']}").status_code == 204
    again = named(tenant, split="train")
    quota(100)
    importer.work_off_due()
    assert seen(tenant, again["id"])["error"]["code"] == "quota_exceeded"
    assert tenant.upload(jsonl(chat_rows(1)[0])).status_code == 201, "what failed reserves nothing"


def test_a_task_waits_for_nothing_but_is_refused_in_words(tenant, importer):
    made = named(tenant, split="train")
    spec = tenant.spec(made["id"])
    refusal = tenant.post("/v1/tasks", json=spec).json()["errors"][0]
    assert (refusal["field"], refusal["code"]) == ("dataset.file_id", "file_importing")
    assert f"GET /v1/files/{made['id']}" in refusal["message"]
    importer.work_off_due()
    assert tenant.post("/v1/tasks", json=spec).status_code == 201


def test_another_tenant_sees_nothing_of_an_import(tenant, new_tenant, importer):
    made, other = named(tenant, split="train"), new_tenant()
    assert other.get(f"/v1/files/{made['id']}").status_code == 404
    assert other.delete(f"/v1/files/{made['id']}").status_code == 404
    assert other.get("/v1/files?status=importing").json()["data"] == []
    refusal = other.post("/v1/tasks", json=other.spec(made["id"])).json()["errors"][0]
    assert refusal["code"] == "file_unknown"
    assert new_tenant(Scope.READ).post("/v1/files", json={"source": SOURCE}).status_code == 403
    importer.work_off_due()
    assert other.get(f"/v1/files/{made['id']}").status_code == 404


def test_an_idempotency_key_imports_once(tenant):
    key = {"Idempotency-Key": "once"}
    one, two = (tenant.post("/v1/files", json={"source": SOURCE, "split": "train"}, headers=key) for _ in range(2))
    assert one.json() == two.json()
    assert len(tenant.get("/v1/files?status=importing").json()["data"]) == 1
    other = tenant.post("/v1/files", json={"source": SOURCE, "split": "test"}, headers=key)
    assert other.json()["code"] == "idempotency_key_reused"


def test_an_import_that_is_deleted_meanwhile_leaves_nothing(tenant, importer, hub, database, settings, monkeypatch):
    monkeypatch.setattr("service.messaging.progress_notes._NOTE_SECONDS", 0.0)
    made = named(tenant, split="train")
    hub.faults(block=200, seconds=0.3)  # ten seconds in all
    fetching = threading.Thread(target=importer.work_off_due)
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


def test_an_import_whose_source_sends_nothing_for_long_stays_its_own(tenant, importer, hub, database, monkeypatch):
    """Five answers may each be silent for half a minute, and a claim lasts for two."""
    made, held = named(tenant, split="train"), list[bool]()

    def pause(seconds: float) -> None:
        if seconds:
            with database.begin() as session:
                row, now = session.get_one(FileImport, made["id"]), clock(session)
                held.append(row.claimed_until > now)
                row.claimed_until = now

    hub.faults(cut_after=0)
    monkeypatch.setattr(importer, "pause", pause)
    importer.work_off(importer._claims.take())
    assert held == [True] * 4


def test_an_import_whose_process_died_is_begun_anew_by_another(tenant, importer, dependencies, database):
    made = named(tenant, split="train")
    died = Importer(dependencies)._claims.take()
    assert died is not None
    assert importer.work_off_due() == 0, "it is another's"
    with database.begin() as session:
        session.execute(update(FileImport).where(FileImport.id == made["id"]).values(claimed_until=clock(session)))
    assert importer.work_off_due() == 1
    assert (seen(tenant, made["id"])["status"], seen(tenant, made["id"])["attempts"]) == ("ready", 2)
    with pytest.raises(Lost):  # the dead one comes back
        Importer(dependencies)._claims.renew(died)


def test_an_import_whose_process_died_each_time_is_failed_and_the_others_go_on(tenant, importer, database):
    deadly, good = named(tenant, split="train"), named(tenant, split="test")
    with database.begin() as session:
        as_left = {"attempts": ATTEMPTS, "claim": "x", "claimed_until": clock(session)}
        session.execute(update(FileImport).where(FileImport.id == deadly["id"]).values(as_left))
    assert importer.work_off_due() == 1
    failed = seen(tenant, deadly["id"])
    assert (failed["status"], failed["attempts"], "died each time" in failed["error"]["detail"]) == ("failed", ATTEMPTS, True)
    assert seen(tenant, good["id"])["status"] == "ready"


def test_a_stopping_process_gives_back_what_it_fetches(tenant, dependencies, hub, monkeypatch):
    monkeypatch.setattr("service.messaging.progress_notes._NOTE_SECONDS", 0.0)
    made = named(tenant, split="train")
    hub.faults(block=200, seconds=0.3)  # ten seconds in all
    stopping = Importer(dependencies)
    stopping.wake()
    progress(tenant, made["id"])
    stopping.close(30)
    back = seen(tenant, made["id"])
    assert (back["status"], back["attempts"]) == ("importing", 0)
    hub.faults()
    Importer(dependencies).work_off_due()
    assert seen(tenant, made["id"])["status"] == "ready"


def test_ended_imports_are_forgotten_and_files_keep_where_they_came_from(tenant, importer, hub, database, dependencies):
    kept, gone, failed = named(tenant, split="train"), named(tenant, split="test"), named(tenant, split="train")
    hub_row = FileImport.id == failed["id"]
    with database.begin() as session:
        session.execute(update(FileImport).where(hub_row).values(pins={"sha256": "0" * 64}))
    importer.work_off_due()
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
    until(importer.work_off_due)
    added, _ = waiting.communicate()
    assert (json.loads(added)["status"], json.loads(added)["name"], json.loads(added)["rows"]) == ("ready", "mine.jsonl", 60)
    failing = motet("files", "add", "hf://datasets/org/wrong")
    until(importer.work_off_due)
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
            await asyncio.to_thread(importer.work_off_due)
            return (await client.files.wait(made.id)).id

    with Client(server.url, tenant.key) as client:
        assert client.files.get(asyncio.run(beside())).rows == 3
        made = client.files.add("hf://datasets/org/wrong")
        assert [one.id for one in client.files.imports()] == [made.id]
        with pytest.raises(FileNotReady, match=r"is still imported after 0 s, 0 bytes"):
            client.files.wait(made.id, timeout=0)
        importer.work_off_due()
        with pytest.raises(FileNotReady, match="completion"):
            client.files.wait(made.id)
