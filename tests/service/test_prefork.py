"""The API as several processes on one socket: they count as one, one that is killed is replaced, none outlives the others."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.settings import Settings
from service.tenants.api_keys import Scope
from tests.service.api import chat_rows, jsonl
from tests.service.live_server import PATIENCE, until
from tests.service.metrics.test_metrics_endpoint import samples
from tests.service.processes import Api, serving

ROOT = Path(__file__).parents[2]
MEMBERS, STREAMS = 2, 8
HEALTH = ("motet_api_requests_total", "GET", "/livez", "200")


@pytest.fixture(scope="module")
def settings(settings_for, database_url, free_port, tmp_path_factory) -> Settings:
    folder = tmp_path_factory.mktemp("service")
    return settings_for(database_url, folder, port=free_port(), api_processes=MEMBERS)


@pytest.fixture(scope="module")
def api(settings, environment_of, log) -> Iterator[Api]:
    with serving(settings, environment_of(settings), log) as started:
        yield started


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("log") / "api.log"


@pytest.fixture
def key(new_key) -> str:
    return new_key(*Scope)


@pytest.fixture
def http(api, key) -> Iterator[httpx.Client]:
    with calling(api, key) as made:
        yield made


def calling(api: Api, key: str) -> httpx.Client:
    """Each request comes on a connection of its own, so that any process may answer it."""
    headers, limits = {"Authorization": f"Bearer {key}"}, httpx.Limits(max_keepalive_connections=0)
    return httpx.Client(base_url=api.url, headers=headers, limits=limits, timeout=PATIENCE)


def members(api: Api) -> set[int]:
    said = Path(f"/proc/{api.process.pid}/task/{api.process.pid}/children").read_text()
    return {int(pid) for pid in said.split()}


def files_of(pid: int) -> set[Path]:
    """Where a process keeps its measurements."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {Path(line.split()[-1]) for line in lines if line.endswith(".db")}


def ask_all(http: httpx.Client) -> list[str]:
    """Ask until every process has answered; the ids of the requests. All of a process begin with the same word."""
    ids: list[str] = []
    until(lambda: ids.append(http.get("/livez").headers["x-request-id"]) or len({id[:12] for id in ids}) == MEMBERS)
    return ids


def counted(http: httpx.Client, asked: int) -> None:
    """Wait until so many requests are counted: a process counts one once it has answered it, while its client goes on."""
    names = (HEALTH, ("motet_api_request_seconds_count", "GET", "/livez"))
    until(lambda: min(samples(http.get("/metrics")).get(name, 0) for name in names) >= asked)


def test_they_count_as_one(api, http) -> None:
    before = samples(http.get("/metrics")).get(HEALTH, 0)
    asked = ask_all(http)
    assert len(set(asked)) == len(asked)
    counted(http, before + len(asked))
    told = [samples(http.get("/metrics")) for _ in range(5)]
    assert {one[HEALTH] for one in told} == {before + len(asked)}
    assert {one["motet_api_request_seconds_count", "GET", "/livez"] for one in told} == {before + len(asked)}
    assert {one["motet_api_database_connections", "system"] for one in told} <= {0, 1}


def test_one_that_is_killed_is_replaced_and_what_it_counted_stays(api, http) -> None:
    asked = samples(http.get("/metrics")).get(HEALTH, 0) + len(ask_all(http))
    counted(http, asked)
    before = members(api)
    assert len(before) == MEMBERS
    killed = before.pop()
    (folder,) = {path.parent for path in files_of(killed)}
    kept = set(folder.iterdir())
    os.kill(killed, signal.SIGKILL)
    until(lambda: len(members(api)) == MEMBERS and killed not in members(api))
    asked += len(ask_all(http))
    counted(http, asked)
    assert samples(http.get("/metrics"))[HEALTH] == asked
    assert set(folder.iterdir()) <= kept


def _task(http: httpx.Client, small_model: str) -> str:
    file_id = http.post("/v1/files", files={"file": ("t", jsonl(*chat_rows(9)))}).json()["id"]
    spec = {"base_model": small_model, "dataset": {"file_id": file_id}, "search_space": {"learning_rate": [1e-4]}}
    return str(http.post("/v1/tasks", json=spec | {"training": {"max_seq_len": 64}}).json()["id"])


@pytest.fixture
def follow() -> Iterator[Callable[[httpx.Client, str], None]]:
    """Read a task's events in a thread until the stream ends; returns once it has begun."""
    threads: list[threading.Thread] = []

    def begin(http: httpx.Client, task_id: str) -> None:
        begun = threading.Event()

        def read() -> None:
            with http.stream("GET", f"/v1/tasks/{task_id}/events") as stream:
                for line in stream.iter_lines():
                    if line.startswith("id:"):
                        begun.set()

        threads.append(threading.Thread(target=read))
        threads[-1].start()
        assert begun.wait(PATIENCE)

    yield begin
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_told_to_stop_all_let_go_of_their_streams(settings, environment_of, key, small_model, follow, tmp_path, free_port):
    settings, log = settings.model_copy(update={"port": free_port()}), tmp_path / "api.log"
    with serving(settings, environment_of(settings), log) as api, calling(api, key) as http:
        _stopped_under_streams(api, http, small_model, follow)
    lines: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
    said = [line["request_id"] for line in lines if line["event"] == "request" and line["path"].endswith("/events")]
    assert len(said) == len(set(said)) == STREAMS, "the last words of each process are written"


def _stopped_under_streams(api: Api, http: httpx.Client, small_model: str, follow: Callable[[httpx.Client, str], None]) -> None:
    task_id = _task(http, small_model)
    for _ in range(STREAMS):
        follow(http, task_id)
    ask_all(http)
    folders = {path.parent for pid in members(api) for path in files_of(pid)}
    api.process.send_signal(signal.SIGTERM)
    assert api.process.wait(PATIENCE) == 0
    assert folders
    assert not any(folder.exists() for folder in folders)


PROGRAM = """
import os, sys, threading
from service.prefork import Prefork

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one go: four processes write to one pipe

crew = Prefork(3, lambda number: say("lost", number), lambda: say("orphan"))
number = crew.lead()
if number is None:
    say("over")
    sys.exit()
say("member", number, os.getpid())
if sys.argv[1:] == [str(number)]:
    sys.stdin.readline()  # when all have said that they are there: the others end with this one
    sys.exit(7)
threading.Event().wait()
"""


@pytest.fixture
def crew() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A crew of three that do nothing; what they say comes through a pipe."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(command, **pipes, text=True, cwd=ROOT))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def said(process: subprocess.Popen[str], count: int) -> list[list[str]]:
    """The next lines, as words."""
    assert process.stdout is not None
    return [process.stdout.readline().split() for _ in range(count)]


def test_a_member_that_is_killed_is_replaced_under_its_number(crew) -> None:
    process = crew()
    numbers = {number: int(pid) for _, number, pid in said(process, 3)}
    assert set(numbers) == {"0", "1", "2"}
    os.kill(numbers["1"], signal.SIGKILL)
    (lost,), ((word, number, pid),) = said(process, 1), said(process, 1)
    assert (lost, word, number) == (["lost", "1"], "member", "1")
    process.send_signal(signal.SIGINT)
    assert (said(process, 2), process.wait()) == ([["over"], []], 0)
    assert not any(Path(f"/proc/{one}").exists() for one in [*numbers.values(), pid])


def test_members_follow_a_leader_that_is_killed(crew) -> None:
    process = crew()
    pids = [pid for _, _, pid in said(process, 3)]
    process.kill()
    assert said(process, 4) == [["orphan"]] * 3 + [[]], "the pipe closes when the last of them has ended"
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_a_member_that_fails_by_itself_ends_all(crew) -> None:
    process = crew("1")
    assert [word for word, *_ in said(process, 3)] == ["member"] * 3
    process.stdin.close()
    assert (said(process, 1), process.wait()) == ([[]], 7)
