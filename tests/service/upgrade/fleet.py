"""A Motet of real processes, each of the version that a test says: replaced one by one, as in a rolling upgrade."""

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

from service.settings import Settings
from tests.service.upgrade.next_version import ROOT

BASE_MODEL = ROOT / "examples" / "base-model"
ENDED = ("succeeded", "failed", "cancelled")
QUICK = {"heartbeat_seconds": 1, "reconcile_seconds": 1}  # leases are long: an API may take long to be replaced
_PATIENCE = 180.0
_ROWS = [{"prompt": f"{at} + 1?", "completion": str(at + 1)} for at in range(12)]


@dataclass
class Fleet:
    """`trees` are the source trees by version; every process has a name, and is started in one of them."""

    settings: Settings
    environment: dict[str, str]
    folder: Path
    node_redis_url: str
    trees: dict[str, Path]
    next_number: str
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    key: str = ""
    admin_key: str = ""

    # ---- processes -----------------------------------------------------------------------------------------------

    def begin(self, version: str) -> None:
        """Migrate, bootstrap, and serve with this version."""
        self.migrate(version)
        self._run(version, "service", "bootstrap")
        keys = json.loads((self.settings.state_dir / "credentials.json").read_text())
        self.key, self.admin_key = keys["demo_key"], keys["admin_key"]
        self.api(version)
        self._admin("POST", "/v1/admin/models", json={"name": "base", "source": str(BASE_MODEL)})

    def migrate(self, version: str) -> None:
        self._run(version, "service", "migrate")

    def api(self, version: str) -> None:
        """Have this version serve on the API's port; the one before it stops first."""
        self.stop("api")
        self._start("api", version, "service", "api")
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                if httpx.get(self._url("/readyz"), timeout=_PATIENCE).status_code == 200:
                    return
            except httpx.TransportError:
                assert self.running["api"].poll() is None, self.said("api")
            assert time.monotonic() < deadline, self.said("api")
            time.sleep(0.05)  # nothing tells when a port is open

    def plan_with(self, version: str) -> None:
        """A queue worker and a reconciler of this version, beside those that run."""
        for word in ("queue", "reconcile"):
            self._start(f"{word}-{version}", version, "service", word)

    def stop_planning_with(self, version: str) -> None:
        self.stop(f"queue-{version}", f"reconcile-{version}")

    def work_with(self, version: str, slots: int = 1) -> None:
        """A node of this version, which takes tasks also if it was drained before."""
        for node in self._nodes(version):
            self._admin("POST", f"/v1/admin/nodes/{node}/undrain")
        name = f"node-{version}"
        token = self._admin("POST", "/v1/admin/join-tokens", json={"node_name": name})["secret"]
        more = {
            "MOTET_API_URL": self.settings.api_url,
            "MOTET_JOIN_TOKEN": token,  # for the first time; then it has a credential
            "MOTET_REDIS_URL": self.node_redis_url,
            "MOTET_NODE_NAME": name,
            "MOTET_WORKER_DIR": str(self.folder / f"worker-{version}"),
            "MOTET_WORKER_DEVICE": "cpu",
            "MOTET_WORKER_SLOTS": str(slots),
            "MOTET_WORKER_THREADS": "1",
        }
        self._start(f"worker-{version}", version, "worker", **more)

    def retire(self, version: str) -> None:
        """Drain the version's node, as OPERATIONS.md says, and stop it once its tasks have left it, safe to the last step."""
        (node,) = self._nodes(version)
        self._admin("POST", f"/v1/admin/nodes/{node}/drain", json={"evict": True})
        deadline = time.monotonic() + _PATIENCE
        while self.rows(f"SELECT 1 FROM placements WHERE node_id = '{node}' AND ended_at IS NULL"):
            assert time.monotonic() < deadline, self.said(f"worker-{version}")
            time.sleep(0.1)  # nothing tells a client of a placement's end
        self.stop(f"worker-{version}")

    def _nodes(self, version: str) -> list[str]:
        return [row[0] for row in self.rows(f"SELECT id FROM nodes WHERE name = 'node-{version}'")]

    def stop(self, *names: str) -> None:
        """As on SIGTERM, together."""
        processes = [self.running.pop(name) for name in names if name in self.running]
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(_PATIENCE)

    def end(self) -> None:
        self.stop(*self.running)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def _start(self, name: str, version: str, *words: str, **more: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", *words]
            environment = self._environment(version) | more
            process = subprocess.Popen(command, cwd=self.trees[version], env=environment, stdout=log, stderr=log)
        self.running[name] = process

    def _run(self, version: str, *words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=self.trees[version], env=self._environment(version), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def _environment(self, version: str) -> dict[str, str]:
        tree = self.trees[version]
        path = os.pathsep.join(map(str, (tree, tree / "kernels", tree / "client")))
        return self.environment | {"PYTHONPATH": path}

    # ---- what a tenant does --------------------------------------------------------------------------------------

    def _admin(self, method: str, path: str, **how: Any) -> Any:
        answer = self.call(method, path, key=self.admin_key, **how)
        assert answer.is_success, answer.text
        return answer.json()

    def call(self, method: str, path: str, key: str | None = None, **how: Any) -> httpx.Response:
        """Until it is answered: meanwhile the API is replaced. A POST carries a key, so that it makes nothing twice."""
        once = {"Idempotency-Key": f"k{next(_numbers)}-{os.getpid()}"} if method == "POST" else {}
        headers = _bearer(key or self.key) | once | how.pop("headers", {})
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                answer = httpx.request(method, self._url(path), headers=headers, timeout=60, **how)
            except httpx.TransportError:
                assert time.monotonic() < deadline
            else:
                if answer.status_code != 503:
                    return answer
            time.sleep(0.1)  # nothing tells when the API is back

    def upload(self) -> str:
        content = "".join(json.dumps(row) + "\n" for row in _ROWS).encode()
        answer = self.call("POST", "/v1/files", files={"file": ("rows.jsonl", content)})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def submit(self, file: str, **more: Any) -> str:
        spec = {
            "base_model": "base",
            "dataset": {"file_id": file, "validation_fraction": 0.2},
            "search_space": {"learning_rate": [1e-3], "rank": [4], "batch_size": [4]},
            "training": {"epochs": 1, "max_steps": 2, "max_seq_len": 32},
            "early_exit": {"policy": "none"},
        }
        answer = self.call("POST", "/v1/tasks", json=spec | more)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def until(self, task_id: str, holds: Callable[[dict[str, Any]], bool], seconds: float = _PATIENCE) -> dict[str, Any]:
        deadline, known, task = time.monotonic() + seconds, {}, {}
        while time.monotonic() < deadline:
            answer = self.call("GET", f"/v1/tasks/{task_id}", params={"wait": 5}, headers=known)
            if answer.status_code == 200:
                task, known = answer.json(), {"If-None-Match": answer.headers["etag"]}
                if holds(task):
                    return task
                assert task["status"] not in ENDED, f"ended as {task['status']}: {task['error']}"
            else:
                assert answer.status_code == 304, answer.text
        raise AssertionError(f"not within {seconds} s: {task}")

    def must_succeed(self, task_id: str, seconds: float = _PATIENCE) -> None:
        ended = self.until(task_id, lambda task: task["status"] in ENDED, seconds)
        assert ended["status"] == "succeeded", ended["error"]

    def must_hand_out(self, task_id: str) -> None:
        """The winner's files come back with their sha256: from a bucket by a presigned URL, else from the API."""
        adapter_id = self.call("GET", f"/v1/tasks/{task_id}").json()["winner"]["adapter_id"]
        for file in self.call("GET", f"/v1/adapters/{adapter_id}").json()["files"]:
            answer = self.call("GET", f"/v1/adapters/{adapter_id}/files/{file['path']}", follow_redirects=True)
            assert sha256(answer.content).hexdigest() == file["sha256"]
            assert [one.status_code for one in answer.history] == ([307] if self.settings.storage_url else [])

    def _url(self, path: str) -> str:
        return self.settings.api_url + path

    # ---- what became of it ---------------------------------------------------------------------------------------

    def rows(self, statement: str) -> list[Any]:
        engine = sa.create_engine(str(self.settings.owner_database_url), poolclass=sa.NullPool)
        with engine.connect() as connection:
            return list(connection.execute(sa.text(statement)).all())

    def succeeded(self) -> int:
        return int(self.rows("SELECT count(*) FROM tasks WHERE status = 'succeeded'")[0][0])

    def must_have_lost_nothing(self, tasks: int) -> None:
        """All succeeded, and no step of any job was trained twice: none was taken back, and the placements together trained
        as many as the jobs have."""
        assert self.rows("SELECT status, count(*) FROM tasks GROUP BY status") == [("succeeded", tasks)]
        assert self.rows("SELECT count(*) FROM point_chunks WHERE hidden_by IS NOT NULL") == [(0,)]
        twice = """SELECT t.id, trained, done FROM tasks t
            JOIN (SELECT task_id, sum(steps) AS trained FROM placements GROUP BY task_id) p ON p.task_id = t.id
            JOIN (SELECT task_id, sum(step) AS done FROM jobs GROUP BY task_id) j ON j.task_id = t.id
            WHERE trained <> done"""
        assert self.rows(twice) == []
        told = "SELECT job_id, s.step, count(*) FROM point_chunks, unnest(steps) s(step) WHERE series = 'train_loss'"
        assert self.rows(f"{told} GROUP BY job_id, s.step HAVING count(*) > 1") == []


class Load(threading.Thread):
    """Submits so many tasks, one each `seconds`, whatever happens to the service meanwhile."""

    def __init__(self, fleet: Fleet, file: str, tasks: int, seconds: float) -> None:
        super().__init__(name="load", daemon=True)
        self._fleet, self._file, self._left, self._seconds = fleet, file, tasks, seconds
        self.tasks: list[str] = []
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        pause = threading.Event()
        try:
            for _ in range(self._left):
                self.tasks.append(self._fleet.submit(self._file))
                pause.wait(self._seconds)
        except AssertionError as error:
            self.failure = error

    def must_end(self, seconds: float) -> None:
        """All are submitted, and each succeeds."""
        self.join(_PATIENCE + self._left * (self._seconds + 1))
        assert self.failure is None, self.failure
        assert len(self.tasks) == self._left
        for task in self.tasks:
            self._fleet.must_succeed(task, seconds)


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


_numbers = itertools.count(1)
