"""`motet admin` backs up, verifies, restores and rotates the key of a whole stack, whose programs all run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from deploy import operator_commands
from deploy.devstack.postgres_account import choose_account
from deploy.devstack.stack import postgres_of
from deploy.devstack.state_folder import State
from service.backup.backup_creation import fingerprint
from service.backup.catalogue import Manifest, StoredPart, catalogue_in
from service.database.engine import Database
from service.secret_box import SecretBox, Unsealable
from service.settings import Settings
from service.webhooks.factories import PURPOSE
from service.webhooks.models import Webhook
from tests.deploy.watching import Events

ROWS = b'{"prompt": "1 + 1?", "completion": "2"}\n' * 20
MAIN = "from motet.cli import main; main()"


@dataclass(frozen=True)
class Told:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="motet-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def motet(state: Path, *words: str, **environment: str) -> Told:
    """The command line, with nothing in its environment but where the stack's state is."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("MOTET_")}
    env = bare | {"MOTET_STATE_DIR": str(state), "XDG_CONFIG_HOME": str(state.parent / "config")} | environment
    done = subprocess.run([sys.executable, "-c", MAIN, *words], env=env, capture_output=True, text=True, timeout=600)
    return Told(done.returncode, done.stdout, done.stderr)


@contextmanager
def running(state: Path) -> Iterator[httpx.Client]:
    """A stack without workers, and its demo tenant's calls."""
    stack = Events(["-m", "deploy.devstack", "--workers", "0"], {"MOTET_STATE_DIR": str(state)})
    try:
        url = stack.await_event("ready")["api_url"]
        key = json.loads((state / "credentials.json").read_text())["demo_key"]
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60, trust_env=False) as client:
            yield client
    finally:
        stack.process.send_signal(signal.SIGINT)
        assert stack.process.wait() == 0


def sealed(state: Path, webhook: str) -> bytes:
    """A webhook's secret as the running stack's database has it."""
    db = Database(postgres_of(State(state), choose_account()).url(), pool_size=1)
    with db.begin() as session:
        secret = session.get_one(Webhook, webhook).secret
    db.engine.dispose()
    return secret


def key_of(state: Path) -> str:
    return str(State(state).secrets().secret_key)


@dataclass(frozen=True)
class BackedUp:
    """A stack's backup, and what was there when it was taken."""

    state: Path
    place: Path
    file: dict[str, Any]
    webhook: dict[str, Any]
    taken: dict[str, Any]  # as `motet admin backup` says


@pytest.fixture(scope="module")
def backed_up(folder: Path) -> BackedUp:
    state, place = folder / "state", folder / "backups"
    with running(state) as client:
        file = client.post("/v1/files", files={"file": ("rows.jsonl", ROWS)}).json()
        hook = client.post("/v1/webhooks", json={"url": "https://1.1.1.1/", "events": ["task.succeeded"]}).json()
        taken = motet(state, "admin", "backup", str(place), "--json").json
        assert motet(state, "admin", "backups", "--json").json["name"] == taken["backup"]["name"], "as the service tells"
        later = client.post("/v1/files", files={"file": ("rows.jsonl", ROWS * 2)})
        assert later.status_code == 201
    return BackedUp(state, place, file, hook, taken)


@pytest.mark.timeout(900)
def test_a_stack_is_restored_by_command_as_it_was_when_it_was_backed_up(folder: Path, backed_up: BackedUp) -> None:
    state = folder / "again"
    assert (backed_up.taken["of"], backed_up.taken["with_secrets"]) == (f"the stack in {backed_up.state}", True)
    done = motet(state, "admin", "restore", str(backed_up.place), "--json").json
    assert (done["of"], done["backup"], done["other_secret_key"]) == (f"the stack in {state}", backed_up.taken["backup"], False)
    with running(backed_up.state) as original, running(state) as client:
        assert client.get("/v1/files").json()["data"] == [backed_up.file], "the other one came after the backup"
        assert len(original.get("/v1/files").json()["data"]) == 2, "it goes on beside the restored one"
        secret = sealed(state, backed_up.webhook["id"])
        assert SecretBox(key_of(state), PURPOSE, []).open(secret) == backed_up.webhook["secret"]
        busy = motet(state, "admin", "restore", str(backed_up.place))
        assert (busy.code, "a stack runs" in busy.err) == (1, True), busy.err
    again = motet(state, "admin", "restore", str(backed_up.place))
    assert (again.code, "restore into an empty one" in again.err) == (1, True), again.err


@pytest.mark.timeout(900)
def test_a_backup_is_listed_and_read_where_nothing_else_is_and_damage_is_named(folder: Path, backed_up: BackedUp) -> None:
    elsewhere, place, name = folder / "elsewhere", backed_up.place, backed_up.taken["backup"]["name"]
    assert motet(elsewhere, "admin", "backups", str(place), "--json").json["backups"] == [backed_up.taken["backup"]]
    assert "it is whole" in motet(elsewhere, "admin", "verify", str(place), "--name", name).out
    (kept,) = place.glob("secrets-*.json")
    assert kept.stat().st_mode & 0o077 == 0
    damaged = folder / "damaged"
    shutil.copytree(place, damaged)
    sha256 = backed_up.file["sha256"]
    stored = damaged / "objects" / sha256[:2] / sha256
    stored.chmod(0o600)
    stored.write_bytes(ROWS.replace(b"1", b"3"))
    told = motet(elsewhere, "admin", "verify", str(damaged), "--json")
    assert (told.code, sha256 in told.err) == (1, True), told.err


@pytest.mark.timeout(900)
def test_a_key_is_rotated_by_command_and_everything_is_sealed_anew_at_the_next_start(folder: Path) -> None:
    state = folder / "rotated"
    with running(state) as client:
        hook = client.post("/v1/webhooks", json={"url": "https://1.1.1.1/", "events": ["task.succeeded"]}).json()
        before = key_of(state)
        assert motet(state, "admin", "rotate-key", "--json").json["running"]
        assert key_of(state) != before
        assert SecretBox(before, PURPOSE, []).open(sealed(state, hook["id"])) == hook["secret"], "it runs on as it was"
    with running(state):
        assert SecretBox(key_of(state), PURPOSE, []).open(sealed(state, hook["id"])) == hook["secret"]
        with pytest.raises(Unsealable):
            SecretBox(before, PURPOSE, []).open(sealed(state, hook["id"]))
        assert State(state).earlier_keys() == [before], "answers under Idempotency-Keys live for a day"
        refused = motet(state, "admin", "reseal")
        assert (refused.code, "rotate-key" in refused.err) == (1, True), refused.err


def test_a_key_before_is_forgotten_a_day_after_everything_was_sealed_anew(tmp_path: Path, monkeypatch: Any) -> None:
    state = State(tmp_path)
    first = state.secrets().secret_key
    assert state.earlier_keys() == []
    state.rotate_key()
    monkeypatch.setattr("time.time", lambda: 1e9)
    second = state.secrets().secret_key
    assert state.earlier_keys() == [first], "no start has sealed anything anew, however long ago"
    state.note_resealed([first])
    state.rotate_key()
    monkeypatch.setattr("time.time", lambda: 1e9 + 24 * 3600)
    assert state.earlier_keys() == [first, second]
    monkeypatch.setattr("time.time", lambda: 1e9 + 26 * 3600)
    assert state.earlier_keys() == [second]
    state.note_resealed([])
    assert state.earlier_keys() == [second], "replaced while all was sealed anew, under it"
    assert first not in (tmp_path / "secrets.json").read_text()
    assert SecretStr(state.secrets().secret_key) not in (SecretStr(first), SecretStr(second))


def test_a_later_backup_leaves_an_earlier_one_the_secrets_that_it_needs(tmp_path: Path, monkeypatch: Any) -> None:
    """A key that the stack has forgotten since, and another stack's."""
    url, catalogue = f"file://{tmp_path}/backups", catalogue_in(tmp_path / "backups")

    def taken(state: State, name: str) -> str:
        part = StoredPart(sha256="0" * 64, bytes=0)
        key = state.secrets().secret_key
        made = Manifest(
            name=name, motet="0", revision="0", dump=part, listing=part, objects=0, object_bytes=0, rows={}, secret_key=of(key)
        )  # fmt: skip
        catalogue.write(made)
        assert operator_commands._keep_secrets(state, url, made)
        return key

    def of(key: str) -> str:
        return fingerprint(Settings.model_construct(secret_key=SecretStr(key)))

    stack, other = State(tmp_path / "stack"), State(tmp_path / "other")
    keys = [taken(stack, "1")]
    stack.rotate_key()
    monkeypatch.setattr("time.time", lambda: 1e9)
    stack.note_resealed(keys)
    monkeypatch.setattr("time.time", lambda: 1e9 + 100 * 3600)
    stack.note_resealed([])
    keys += [taken(stack, "2"), taken(other, "3")]
    for name, key in zip("123", keys, strict=True):
        kept = operator_commands._secrets_of(url, catalogue.read(name))
        assert json.loads(kept.read_text())["secret_key"] == key, name


def test_a_restored_folder_has_a_mark_of_its_own_and_every_earlier_key(tmp_path: Path, monkeypatch: Any) -> None:
    before, after = State(tmp_path / "before"), State(tmp_path / "after")
    first = before.secrets().secret_key
    before.rotate_key()
    monkeypatch.setattr("time.time", lambda: 1e9)
    before.note_resealed([first])
    monkeypatch.setattr("time.time", lambda: 1e9 + 100 * 3600)
    assert before.earlier_keys() == []
    after.take_secrets(before.folder / "secrets.json")
    assert after.earlier_keys() == [first], "the backup may be older than the newest key"
    assert after.secrets().secret_key == before.secrets().secret_key
    assert after.secrets().mark != before.secrets().mark, "a stack ends all processes of its mark as it starts"


@pytest.mark.timeout(900)
def test_who_may_not_or_cannot_is_told_what_to_run(folder: Path) -> None:
    nowhere = folder / "nothing"
    for words in (("backup", str(folder / "b")), ("rotate-key",)):
        told = motet(nowhere, "admin", *words)
        assert (told.code, "there is no stack in" in told.err) == (1, True), told.err
    told = motet(nowhere, "admin", "verify", str(folder / "b"))
    assert (told.code, "is no folder" in told.err) == (1, True), told.err
    remote = {"MOTET_API_URL": "https://motet.example", "MOTET_API_KEY": "mk_x"}
    told = motet(nowhere, "admin", "backup", str(folder / "b"), "--json", **remote)
    message = json.loads(told.err.splitlines()[-1])["error"]["message"]
    assert "https://motet.example" in message
    assert "kubectl create job --from=cronjob/" in message
    assert "docker compose run" in message
    assert not (folder / "b").exists()


def test_a_deployments_own_variables_come_first(stack: Any, tmp_path: Path) -> None:
    """In a shell that has them, `motet admin` works on that deployment, whatever stack lies here."""
    told = motet(
        tmp_path / "state",
        *("admin", "backups", str(tmp_path), "--json"),
        MOTET_DATABASE_URL=stack.database_url,
        MOTET_APP_DATABASE_URL=stack.database_url,
        MOTET_REDIS_URL=stack.valkey.url("service"),
        MOTET_SECRET_KEY="0123456789abcdef" * 4,
        MOTET_STORAGE_DIR=str(tmp_path / "storage"),
    )
    assert (told.json["of"], told.json["backups"]) == ("the deployment of this environment", [])
    told = motet(tmp_path / "state", "admin", "reseal", MOTET_DATABASE_URL=stack.database_url)
    assert (told.code, "MOTET_SECRET_KEY is not set" in told.err) == (1, True), told.err
