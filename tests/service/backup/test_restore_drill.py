"""A deployment is backed up by command while it serves, lost, and restored: over folders, and over a bucket."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy import select, update

from service.background.garbage_collection import sweep
from service.backup.backup_creation import back_up, required
from service.backup.catalogue import catalogue_at
from service.database.engine import Database, driver_url
from service.files.models import File
from service.fleet.models import BaseModel
from service.metrics.fleet_metrics import FleetMetrics
from service.metrics.models import NewestBackup
from service.schema import roles
from service.settings import Settings
from service.storage.connect import storage_at, storage_of
from service.storage.object_store import Storage
from service.webhooks.factories import box_of
from service.webhooks.models import Webhook
from tests.service.api import Caller
from tests.service.conftest import name_of
from tests.service.storage.object_servers import CREDENTIALS, object_server

ROWS = b"".join(b'{"prompt": "%d + 1?", "completion": "%d"}\n' % (at, at + 1) for at in range(20))
KEY, NEWER = "0123456789abcdef" * 4, "fedcba9876543210" * 4


@dataclass
class Deployment:
    """A service, its settings, and its commands."""

    settings: Settings
    caller: Caller
    environment: dict[str, str]

    def command(self, name: str, **changes: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "service", name]
        return subprocess.run(command, env=self.environment | changes, capture_output=True, text=True, timeout=120)

    def upload(self, content: bytes) -> dict[str, Any]:
        answer = self.caller.upload(content)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())


@pytest.fixture(params=["folder", "localbucket", "moto"])
def places(request, tmp_path) -> Any:
    """Settings of the storage in use, of the backups, and of the storage to restore into."""
    if request.param == "folder":
        where = {"storage_dir": tmp_path / "storage", "backup_url": f"file://{tmp_path / 'backups'}"}
        yield where, {"storage_dir": tmp_path / "restored"}
        return
    with object_server(request.param, tmp_path) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        where = server.settings("in/use") | {"backup_url": f"s3://{server.bucket}/backups"}
        yield where, server.settings("restored")


@pytest.fixture
def deploy(settings_for, serve, environment_of, tmp_path) -> Callable[..., Deployment]:
    def make(url: str, **changes: Any) -> Deployment:
        settings = settings_for(url, tmp_path, **({"secret_key": SecretStr(KEY)} | changes))
        return Deployment(settings, serve(settings), environment_of(settings) | {"PYTHONPATH": os.pathsep.join(sys.path)})

    return make


def add_model(settings: Settings) -> None:
    db = Database(settings.database_url, pool_size=1)
    model = {
        "source": "/nowhere",
        "revision": "a" * 64,
        "architecture": "LlamaForCausalLM",
        "parameters": 1,
        "max_position": 64,
    }
    with db.begin() as session:
        session.add(BaseModel(name="small", **model))
    db.engine.dispose()


def counts(url: str) -> dict[str, int]:
    with psycopg.connect(driver_url(url)) as connection:
        tables = [name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
        return {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}  # type: ignore[index]


def told_of_backup(of: Deployment) -> float:
    """When the newest backup was taken, as /metrics tells: the moment in its name."""
    db = Database(of.settings.database_url, pool_size=1)
    with db.begin() as session:
        families = FleetMetrics(session, of.settings).collect()
        (sample,) = next(one.samples for one in families if one.name == "motet_backup_newest_timestamp_seconds")
        named = session.scalars(select(NewestBackup.name)).one()
    db.engine.dispose()
    assert f"{datetime.fromtimestamp(sample.value, UTC):%Y%m%dT%H%M%S}" == named[:15]
    return float(sample.value)


def statistics(url: str, table: str) -> int:
    """Of how many columns of the table the planner knows what they hold."""
    with psycopg.connect(driver_url(url)) as connection:
        ((columns,),) = connection.execute("SELECT count(*) FROM pg_stats WHERE tablename = %s", [table]).fetchall()
    return int(columns)


def test_nothing_is_lost_after_the_last_backups_point(stack, new_database_url, deploy, places, tmp_path):
    here, there = places
    lost = deploy(new_database_url, **here)
    add_model(lost.settings)
    file, more = lost.upload(ROWS), lost.upload(ROWS * 3)
    task = lost.caller.task(dataset={"file_id": file["id"]})
    hook = lost.caller.post("/v1/webhooks", json={"url": "https://1.1.1.1/", "events": ["task.succeeded"]}).json()
    first = lost.command("backup")
    assert first.returncode == 0, first.stderr
    first_told = told_of_backup(lost)
    later = lost.upload(ROWS * 2)
    assert lost.command("backup").returncode == 0
    assert told_of_backup(lost) > first_told > 0.0
    at_backup = counts(new_database_url)
    after = lost.upload(ROWS * 4)

    empty = stack.new_database()
    restored = {
        "MOTET_OWNER_DATABASE_URL": empty,
        "MOTET_DATABASE_URL": stack.postgres.url(name_of(empty), roles.SYSTEM),
        "MOTET_APP_DATABASE_URL": stack.postgres.url(name_of(empty), roles.APP),
    }
    restored |= {f"MOTET_{name.upper()}": str(value) for name, value in there.items() if value is not None}
    done = lost.command("restore", **restored)
    assert done.returncode == 0, done.stderr
    assert "all as counted there" in done.stdout
    assert counts(empty) == at_backup
    assert statistics(empty, "tasks") > 0
    assert lost.command("migrate", **restored).returncode == 0

    again = deploy(empty, **(here | there))
    caller = Caller(again.caller.client, lost.caller.tenant_id, lost.caller.key)
    for one, content in ((file, ROWS), (more, ROWS * 3), (later, ROWS * 2)):
        storage = storage_of(again.settings, Database(again.settings.database_url, pool_size=1))
        with storage.open(one["sha256"]) as stored:
            assert stored.read() == content
        assert caller.get(f"/v1/files/{one['id']}").json() == one
    assert caller.get(f"/v1/files/{after['id']}").status_code == 404, "it came after the backup's point"
    assert caller.get(f"/v1/tasks/{task['id']}").json()["id"] == task["id"]
    assert caller.get(f"/v1/webhooks/{hook['id']}").status_code == 200
    refused = lost.command("restore", **restored)
    assert refused.returncode == 1
    assert "restore into an empty one" in refused.stderr


@pytest.fixture
def in_folders(tmp_path, new_database_url, deploy) -> Deployment:
    return deploy(new_database_url, storage_dir=tmp_path / "storage", backup_url=f"file://{tmp_path / 'backups'}")


def restore(stack: Any, deployment: Deployment, tmp_path: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    into = {"MOTET_OWNER_DATABASE_URL": stack.new_database(), "MOTET_STORAGE_DIR": str(tmp_path / "restored")}
    return deployment.command("restore", **(into | changes))


def test_damage_is_found_and_named(stack, in_folders, tmp_path):
    file = in_folders.upload(ROWS)
    stored = tmp_path / "storage" / "objects" / file["sha256"][:2] / file["sha256"]
    assert in_folders.command("backup").returncode == 0
    copy = tmp_path / "backups" / "objects" / file["sha256"][:2] / file["sha256"]
    copy.chmod(0o600)
    copy.write_bytes(ROWS.replace(b"1", b"2"))
    found = restore(stack, in_folders, tmp_path)
    assert (found.returncode, file["sha256"] in found.stderr) == (1, True), found.stderr
    stored.chmod(0o600)
    stored.write_bytes(ROWS[:-1])  # another size, so that it is copied anew
    damaged = in_folders.command("backup")
    assert (damaged.returncode, "nothing was backed up" in damaged.stderr) == (1, True), damaged.stderr
    assert len(list((tmp_path / "backups" / "backups").glob("*.json"))) == 1


def test_a_row_without_its_object_is_no_whole_backup(stack, in_folders, tmp_path, new_database_url):
    file = in_folders.upload(ROWS)
    with Database(new_database_url, pool_size=1).begin() as session:
        session.execute(update(File).values(sha256="b" * 64))
    assert in_folders.command("backup").returncode == 0
    found = restore(stack, in_folders, tmp_path)
    assert (found.returncode, "b" * 64 in found.stderr) == (1, True), found.stderr
    assert file["sha256"] not in found.stderr


def test_older_backups_go_with_what_only_they_needed(stack, in_folders, tmp_path):
    file = in_folders.upload(ROWS)
    assert in_folders.command("backup").returncode == 0
    in_folders.caller.delete(f"/v1/files/{file['id']}")
    for path in (tmp_path / "storage" / "objects").glob("??/*"):
        path.unlink()  # as the collector does
    kept = in_folders.upload(ROWS * 2)
    for path in (tmp_path / "backups" / "objects").glob("??/*"):
        os.utime(path, (0, 0))
    assert in_folders.command("backup", MOTET_BACKUPS_KEPT="1").returncode == 0
    left = {path.name for path in (tmp_path / "backups" / "objects").glob("??/*")}
    assert kept["sha256"] in left
    assert file["sha256"] not in left
    assert len(left) == 3, "the object, the dump and its listing"
    assert restore(stack, in_folders, tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("command", "changes", "said"),
    [
        ("backup", {"MOTET_BACKUP_URL": ""}, "MOTET_BACKUP_URL"),
        *((name, {"MOTET_BACKUP_URL": "s3://[x@b"}, "MOTET_BACKUP_URL 's3://") for name in ("backup", "restore", "backups")),
        ("verify-backup", {"MOTET_BACKUP_URL": "file:///nowhere"}, "MOTET_BACKUP_URL: file:///nowhere is no folder"),
        ("backup", {"MOTET_PG_PROGRAMS": "/nowhere"}, "there is no pg_dump"),
        ("restore", {"MOTET_BACKUP_NAME": "20260101T000000000Z"}, "holds no backup"),
    ],
)
def test_mistakes_are_told(in_folders, command, changes, said):
    found = in_folders.command(command, **changes)
    assert (found.returncode, said in found.stderr) == (1, True), found.stderr


def test_a_secret_key_is_replaced_and_then_forgotten(in_folders, new_database_url):
    """The rotation drill: the new key beside the old one, everything sealed anew, the new one alone."""
    made = in_folders.caller.post("/v1/webhooks", json={"url": "https://1.1.1.1/", "events": ["task.succeeded"]}).json()
    both = {"MOTET_SECRET_KEY": NEWER, "MOTET_SECRET_KEYS_BEFORE": KEY}
    alone = in_folders.command("reseal", MOTET_SECRET_KEY=NEWER)
    assert (alone.returncode, made["id"] in alone.stderr) == (1, True), alone.stderr
    done = in_folders.command("reseal", **both)
    assert (done.returncode, "1 secrets are sealed" in done.stdout) == (0, True), done.stderr
    newest = in_folders.settings.model_copy(update={"secret_key": SecretStr(NEWER)})
    with Database(new_database_url, pool_size=1).begin() as session:
        assert box_of(newest).open(session.get_one(Webhook, made["id"]).secret) == made["secret"]


class CollectedMeanwhile:
    """The backups' storage, beside which the collector works as the dump is stored."""

    def __init__(self, target: Any, collect: Callable[[], None]) -> None:
        self._target, self._collect, self._once = target, collect, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def receive(self) -> Any:
        if not self._once:
            self._once = True
            self._collect()
        return self._target.receive()


def test_what_is_deleted_while_a_backup_is_made_is_in_it_as_its_rows_are(stack, in_folders, tmp_path):
    """The collector removes old objects at once with the rows that refer to them."""
    file = in_folders.upload(ROWS)
    settings = in_folders.settings.model_copy(update={"owner_database_url": in_folders.environment["MOTET_OWNER_DATABASE_URL"]})
    owner, url = required(settings)
    db = Database(settings.database_url, pool_size=2)
    source = storage_of(settings, db)
    stored = tmp_path / "storage" / "objects" / file["sha256"][:2] / file["sha256"]
    os.utime(stored, (0, 0))  # it was uploaded long ago

    def collect() -> None:
        assert in_folders.caller.delete(f"/v1/files/{file['id']}").status_code == 204
        sweep(db, source)
        assert not stored.exists()

    target = CollectedMeanwhile(storage_at(url, settings, db, "MOTET_BACKUP_URL"), collect)
    back_up(owner, source, cast(Storage, target), catalogue_at(url, settings), settings)
    db.engine.dispose()
    restored = restore(stack, in_folders, tmp_path)
    assert restored.returncode == 0, restored.stderr
