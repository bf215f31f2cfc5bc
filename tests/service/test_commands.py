"""python -m service ...: real processes, what they say and how they stop."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
from sqlalchemy import create_engine, text

from contract.processes.local_stack import CREDENTIALS
from service.schema import schema_upgrade
from service.settings import Settings
from tests.service.api import chat_rows, jsonl
from tests.service.live_server import BEFORE_A_POLL_ENDS, PATIENCE
from tests.service.processes import Api, serving


@pytest.fixture
def settings(new_database_url, settings_for, free_port, tmp_path) -> Settings:
    return settings_for(new_database_url, tmp_path, port=free_port())


@pytest.fixture
def run(settings, environment_of) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command to its end, with this test's settings and these changes to its environment."""

    def made(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        environment = environment_of(settings) | changes
        command = [sys.executable, "-m", "service", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)

    return made


@pytest.fixture
def api(settings, environment_of, tmp_path) -> Iterator[Api]:
    with serving(settings, environment_of(settings), tmp_path / "api.log") as started:
        yield started


def credentials(settings: Settings) -> dict[str, str]:
    return json.loads((settings.state_dir / CREDENTIALS).read_text())


def test_a_wrong_setting_is_named_and_a_secret_never_said_back(run):
    ended = run("api", MOTET_SECRET_KEY="brief", MOTET_JOIN_TOKEN="tiny", MOTET_DATABASE_URL="postgres://x", MOTET_PORT="0")
    assert ended.returncode == 1
    said = ended.stderr.splitlines()
    assert said[0] == "motet: MOTET_DATABASE_URL: must start with postgresql+psycopg://"
    assert said[1].startswith("motet: MOTET_SECRET_KEY: needs at least 32 characters, has 5; make one with: python -c")
    assert said[2].startswith("motet: MOTET_JOIN_TOKEN: needs at least 32 characters, has 4")
    assert said[3].startswith("motet: MOTET_PORT: ")
    assert len(said) == 4
    assert "brief" not in ended.stderr


def test_settings_that_are_missing_are_named_together():
    command = [sys.executable, "-m", "service", "api"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MOTET_")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 1
    for name in ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "STORAGE_DIR"):
        assert f"motet: MOTET_{name} is not set" in ended.stderr


@pytest.mark.parametrize("command", ["migrate", "api"])
def test_no_database_is_said_in_one_line(run, command):
    nowhere = "postgresql+psycopg://motet@127.0.0.1:1/motet"
    ended = run(command, MOTET_DATABASE_URL=nowhere, MOTET_OWNER_DATABASE_URL=nowhere)
    assert ended.returncode == 1
    assert ended.stderr.startswith("motet: cannot reach the database: ")
    assert len(ended.stderr.splitlines()) == 1, ended.stderr


@pytest.mark.parametrize("command", ["api", "queue"])
def test_a_database_that_is_behind_is_refused(run, new_database_url, command):
    with create_engine(new_database_url).begin() as connection:
        connection.execute(text("DELETE FROM alembic_version"))
    ended = run(command)
    assert ended.returncode == 1
    assert "run: python -m service migrate" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_unknown_command_shows_those_there_are(run):
    ended = run("serve")
    assert ended.returncode == 2
    words = "migrate | bootstrap | api | queue | reconcile | move-storage | backup | restore | backups | verify-backup | reseal"
    assert f"{words} | openapi" in ended.stderr


def test_migrating_says_where_it_came_to(run):
    assert f"revision {schema_upgrade.head()}" in run("migrate").stdout


def test_the_first_keys_are_made_once_and_work(run, settings, api):
    first = run("bootstrap")
    assert first.returncode == 0, first.stderr
    path = settings.state_dir / CREDENTIALS
    assert str(path) in first.stdout
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    made = credentials(settings)
    assert made["api_url"] == settings.api_url
    for name, status in (("demo", 403), ("admin", 200)):
        headers = {"Authorization": f"Bearer {made[f'{name}_key']}"}
        with httpx.Client(base_url=settings.api_url, headers=headers, timeout=PATIENCE) as client:
            assert client.get("/v1/tasks").status_code == 200
            assert client.get("/v1/admin/tenants").status_code == status

    again = run("bootstrap")
    assert "nothing to do" in again.stdout
    assert credentials(settings) == made


def test_two_first_starts_at_once_agree(settings, environment_of):
    command = [sys.executable, "-m", "service", "bootstrap"]
    processes = [subprocess.Popen(command, env=environment_of(settings), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sum("nothing to do" in one for one in said) == 1
    assert sum("made the tenant 'admin'" in one for one in said) == 1


def test_told_to_stop_the_api_answers_who_waits_and_ends(run, settings, api):
    run("bootstrap")
    headers = {"Authorization": f"Bearer {credentials(settings)['admin_key']}"}
    engine = create_engine(settings.database_url)
    with engine.begin() as connection:
        columns = "name, source, revision, architecture, parameters, max_position, enabled"
        insert = f"INSERT INTO base_models ({columns}) VALUES ('small', '/s', :revision, 'x', 1, 2048, true)"
        connection.execute(text(insert), {"revision": "a" * 64})
    with httpx.Client(base_url=settings.api_url, headers=headers, timeout=PATIENCE) as client:
        file_id = client.post("/v1/files", files={"file": ("t", jsonl(*chat_rows(9)))}).json()["id"]
        spec = {"base_model": "small", "dataset": {"file_id": file_id}, "search_space": {"learning_rate": [1e-4]}}
        task_id = client.post("/v1/tasks", json=spec | {"training": {"max_seq_len": 64}}).json()["id"]
        answers: list[httpx.Response] = []
        sent = threading.Event()
        trace = {"trace": lambda event, _: sent.set() if event == "http11.send_request_body.complete" else None}
        path = f"/v1/tasks/{task_id}?wait=60"
        waiter = threading.Thread(target=lambda: answers.append(client.get(path, extensions=trace, timeout=BEFORE_A_POLL_ENDS)))
        waiter.start()
        assert sent.wait(PATIENCE)
        assert (
            httpx.get(f"{settings.api_url}/readyz", timeout=PATIENCE).status_code == 200
        )  # by now the other one has been read
        api.process.send_signal(signal.SIGTERM)
        waiter.join()
        assert answers[0].json()["status"] == "validating"
    assert api.process.wait(PATIENCE) in (0, -signal.SIGTERM)
