"""A whole Motet of real processes for tests: started, asked over HTTP, hurt on purpose, stopped.

Speaks plain HTTP, as a stranger would, so that the client is not what makes a test pass.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import redis

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
BASE_MODEL = ROOT / "examples" / "base-model"
GSM8K = ROOT / "examples" / "gsm8k" / "train.jsonl"
ENDED = ("succeeded", "failed", "cancelled")
# Test processes share the cores. There a second thread makes steps of the small base a third slower; alone it gains nothing.
ONE_THREAD = {"MOTET_WORKER_THREADS": "1"}
PATIENCE = 480.0  # seconds after which a test gives up


def unpacked(archive: bytes, folder: Path) -> Path:
    """The one folder of an adapter's archive, unpacked into `folder` as a person would."""
    subprocess.run(["tar", "-xzf", "-", "-C", str(folder)], input=archive, check=True)
    (found,) = [path for path in folder.iterdir() if path.is_dir()]
    return found


class RunningStack:
    """One running `python -m deploy.devstack` and the demo tenant's way to talk to it."""

    def __init__(self, state: Path, *, slots: int = 1, workers: int = 1, **environment: str) -> None:
        self.state = state
        command = [sys.executable, "-m", "deploy.devstack", "--slots", str(slots), "--workers", str(workers)]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "MOTET_STATE_DIR": str(state), **ONE_THREAD, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read_events, daemon=True).start()
        self.pids: dict[str, int] = {}
        ready = self.event(lambda e: e["event"] == "ready", seconds=PATIENCE)
        self.url: str = ready["api_url"]
        given = self.environment("api")  # read once: later a process may be between two starts
        self.database_url = given["MOTET_DATABASE_URL"]
        secret = json.loads((state / "secrets.json").read_text())["valkey"]
        self.redis_url = f"unix://:{secret}@{urlsplit(given['MOTET_REDIS_URL']).path}"  # as the role that may do everything
        keys = json.loads((state / "credentials.json").read_text())
        self.admin, self.demo = keys["admin_key"], keys["demo_key"]
        self.http = self._calling(self.demo)
        self.as_admin("POST", "/v1/admin/models", json={"name": "base", "source": str(BASE_MODEL)})

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            self.pids.update(event.get("pids") or {})
            if event["event"] == "restarted":
                self.pids[event["name"]] = event["pid"]
            self._events.put(event)
        self._events.put(None)

    def event(self, wanted: Callable[[dict[str, Any]], bool], seconds: float) -> dict[str, Any]:
        """The next event of the stack for which `wanted` holds."""
        deadline = time.monotonic() + seconds
        while True:
            event = self._events.get(timeout=max(0.01, deadline - time.monotonic()))
            assert event is not None, f"the stack ended with {self._process.wait()}"
            assert event["event"] != "failed", event
            if wanted(event):
                return event

    def stop(self) -> None:
        self.http.close()
        self._process.send_signal(signal.SIGINT)
        assert self._process.wait(timeout=PATIENCE) == 0

    # ---- what a tenant does --------------------------------------------------------------------------------------

    def as_admin(self, method: str, path: str, **kwargs: Any) -> Any:
        answer = httpx.request(method, self.url + path, headers={"Authorization": f"Bearer {self.admin}"}, timeout=90, **kwargs)
        assert answer.is_success, answer.text
        return answer.json()

    def join_token(self, node_name: str) -> str:
        return str(self.as_admin("POST", "/v1/admin/join-tokens", json={"node_name": node_name})["secret"])

    def tenant(self, name: str) -> httpx.Client:
        """A client of a new tenant of this name."""
        tenant = self.as_admin("POST", "/v1/admin/tenants", json={"name": name})
        key = self.as_admin(
            "POST", f"/v1/admin/tenants/{tenant['id']}/keys", json={"name": "test", "scopes": ["read", "write"]}
        )
        return self._calling(key["secret"])

    def _calling(self, key: str) -> httpx.Client:
        """A download is a redirect to where the object is sent."""
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, timeout=90, headers=headers, follow_redirects=True)

    def upload(self, rows: list[dict[str, Any]], http: httpx.Client | None = None) -> str:
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        answer = (http or self.http).post("/v1/files", files={"file": ("rows.jsonl", content)})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def submit(self, http: httpx.Client | None = None, **spec: Any) -> str:
        answer = (http or self.http).post("/v1/tasks", json={"base_model": "base", **spec})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def task(self, task_id: str, http: httpx.Client | None = None, **query: Any) -> dict[str, Any]:
        answer = (http or self.http).get(f"/v1/tasks/{task_id}", params=query)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def until(
        self, task_id: str, holds: Callable[[dict[str, Any]], bool], seconds: float = PATIENCE, http: httpx.Client | None = None
    ) -> dict[str, Any]:
        """Follow the task by its long poll until `holds`; the API may be away meanwhile."""
        deadline, etag = time.monotonic() + seconds, ""
        task: dict[str, Any] = {}
        while time.monotonic() < deadline:
            try:
                known = {"params": {"wait": 10}, "headers": {"If-None-Match": etag}} if etag else {}
                answer = (http or self.http).get(f"/v1/tasks/{task_id}", **known)
            except httpx.TransportError:
                time.sleep(0.2)  # the API was just killed; nothing tells when it is back
                continue
            if answer.status_code == 200:
                task, etag = answer.json(), answer.headers["etag"]
                if holds(task):
                    return task
                assert task["status"] not in ENDED, f"ended as {task['status']}: {task['error']}"
            else:
                assert answer.status_code in (304, 503), answer.text
        raise AssertionError(f"not within {seconds} s: {task}")

    def ended(self, task_id: str, seconds: float = PATIENCE, http: httpx.Client | None = None) -> dict[str, Any]:
        return self.until(task_id, lambda task: task["status"] in ENDED, seconds, http)

    def jobs(self, task_id: str) -> list[dict[str, Any]]:
        answer = self.http.get(f"/v1/tasks/{task_id}/jobs", params={"limit": 200})
        assert answer.status_code == 200, answer.text
        return list(answer.json()["data"])

    def events(self, task_id: str, http: httpx.Client | None = None) -> list[dict[str, Any]]:
        """All events of a task that has ended."""
        stream = (http or self.http).get(f"/v1/tasks/{task_id}/events").text
        return [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]

    def curves(self, task_id: str) -> dict[tuple[int, str], dict[int, float | None]]:
        """(job index, series) -> {step: loss}, having checked that no step is told twice and that steps ascend."""
        answer = self.http.get(f"/v1/tasks/{task_id}/metrics")
        assert answer.status_code == 200, answer.text
        curves: dict[tuple[int, str], dict[int, float | None]] = {}
        for series in answer.json()["data"]:
            assert series["steps"] == sorted(set(series["steps"])), series
            key = series["index"], series["series"]
            assert key not in curves, f"{key} is listed twice"
            curves[key] = dict(zip(series["steps"], series["values"], strict=True))
        return curves

    # ---- what happens to it --------------------------------------------------------------------------------------

    def environment(self, name: str) -> dict[str, str]:
        """What the stack gave process `name` to start with."""
        entries = Path(f"/proc/{self.pids[name]}/environ").read_bytes().decode().split("\0")
        return dict(entry.split("=", 1) for entry in entries if entry)

    @property
    def valkey(self) -> redis.Redis:
        return redis.Redis.from_url(self.redis_url)

    def log(self, name: str) -> Path:
        return self.state / "logs" / f"{name}.log"

    def below(self, name: str, module: str) -> list[int]:
        """Pids of the children of process `name` that run `module`."""
        found = []
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(status.read_text().rsplit(")", 1)[1].split()[1])
                command = (status.parent / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent == self.pids[name] and module.encode() in command:
                found.append(int(status.parent.name))
        return found


@contextmanager
def running_stack(state: Path, **options: Any) -> Iterator[RunningStack]:
    it = RunningStack(state, **options)
    try:
        yield it
    finally:
        it.stop()


def until(holds: Callable[[], T], seconds: float = PATIENCE) -> T:
    """Wait for something that real processes do and tell nobody; returns it."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)
    return found


@contextmanager
def stopped(pids: Iterable[int]) -> Iterator[None]:
    """These processes do nothing meanwhile: what they are in the midst of is not over before a test has looked or struck. Those
    that end meanwhile are gone."""
    held = list(pids)
    try:
        for pid in held:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in held:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def short_rows(rows: int, skip: int = 0, words: int = 6) -> list[dict[str, Any]]:
    """The first words of each turn: what is hurt on purpose should spend its time on steps and checkpoints."""
    return [
        {"messages": [{**turn, "content": " ".join(turn["content"].split()[:words])} for turn in row["messages"]]}
        for row in gsm8k(rows, skip)
    ]


def gsm8k(rows: int, skip: int = 0) -> list[dict[str, Any]]:
    """Real rows of the example set."""
    lines = GSM8K.read_text().splitlines()[skip : skip + rows]
    assert len(lines) == rows
    return [json.loads(line) for line in lines]
