"""Four tenants whose tasks share one executor, for tests of faults: submitted so that all of them join, read back whole.

Tasks of one length share nothing that a waiting task would gain by, so each is shorter than the one before it. Knows no faults.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import sqlalchemy

from tests.walk.running_stack import ENDED, RunningStack, short_rows, until

ROWS = 48
TENANTS = ("amber", "birch", "cedar", "dune")
# One that is evaluated on the way, one of two jobs with dropout, one of a higher rank, one of single rows. All rows are cut
# to one length, so that each counts the same in the bill: what a rewind takes back is counted by rows.
SPECS: tuple[dict[str, Any], ...] = (
    {
        "search_space": {"method": "grid", "learning_rate": [2e-3], "rank": [8], "batch_size": [4]},
        "training": {"epochs": 100, "max_steps": 240, "max_seq_len": 16},
        "early_exit": {"policy": "none", "eval_every": 60},
    },
    {
        "search_space": {"method": "grid", "learning_rate": [3e-3, 1e-3], "rank": [4], "batch_size": [2], "dropout": [0.1]},
        "training": {"epochs": 100, "max_steps": 24, "max_seq_len": 16},
        "early_exit": {"policy": "none", "eval_every": 12},
    },
    {
        "search_space": {"method": "grid", "learning_rate": [1e-3], "rank": [16], "batch_size": [3]},
        "training": {"epochs": 100, "max_steps": 20, "max_seq_len": 16},
        "early_exit": {"policy": "none", "eval_every": 20},
    },
    {
        "search_space": {"method": "grid", "learning_rate": [5e-3], "rank": [8], "batch_size": [1]},
        "training": {"epochs": 100, "max_steps": 16, "max_seq_len": 16},
        "early_exit": {"policy": "none", "eval_every": 16},
    },
)
LOST = "executor_lost"
_ALONE = re.compile(r"It runs alone: (\d+) executors")
_ATTACHED = re.compile(r"of task (\S+) \(.*\) goes to executor pid (\d+)")

Curves = dict[tuple[int, str], dict[int, float | None]]


@dataclass(frozen=True)
class Left:
    """What a task leaves behind: its curves, each adapter's files by sha256, and the tokens that are billed."""

    curves: Curves
    adapters: dict[int, dict[str, str]]
    tokens: int


@dataclass
class Tenant:
    """A tenant, its file of rows that no other has, and the ids that nobody else may read."""

    name: str
    http: httpx.Client
    file: str
    own: set[str] = field(default_factory=set)


class SharedExecutor:
    """Tasks of four tenants on the only device of a stack."""

    def __init__(self, motet: RunningStack, specs: Sequence[dict[str, Any]] = SPECS, rows: int = ROWS) -> None:
        self.motet, self.specs = motet, specs
        self.tenants = []
        for at, name in enumerate(TENANTS):
            http = motet.tenant(name)
            file = motet.upload(short_rows(rows, skip=at * rows), http)
            self.tenants.append(Tenant(name, http, file, {file}))

    def submit(self, at: int, **more: Any) -> str:
        """The healthy task of tenant `at`, with these changes; slow company is better than none to it."""
        tenant = self.tenants[at]
        spec = {"max_slowdown": 64, "dataset": {"file_id": tenant.file}, **self.specs[at], **more}
        if spec.get("isolation") == "dedicated":
            del spec["max_slowdown"]
        task_id = self.motet.submit(tenant.http, **spec)
        tenant.own.add(task_id)
        tenant.own |= {job["id"] for job in self.jobs(at, task_id)}
        return task_id

    def close(self) -> None:
        for tenant in self.tenants:
            tenant.http.close()

    # ---- followed ------------------------------------------------------------------------------------------------

    def task(self, at: int, task_id: str) -> dict[str, Any]:
        return self.motet.task(task_id, self.tenants[at].http)

    def until(self, at: int, task_id: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        return self.motet.until(task_id, holds, http=self.tenants[at].http)

    def trains(self, at: int, task_id: str, steps: int = 1) -> None:
        """Wait until the task has trained so many steps since it was first placed."""
        self.until(at, task_id, lambda task: task["status"] in ENDED or task["progress"]["steps_done"] >= steps)

    def ended(self, at: int, task_id: str, seconds: float = 240) -> dict[str, Any]:
        return self.motet.ended(task_id, seconds, self.tenants[at].http)

    def together(self, tasks: Mapping[int, str]) -> None:
        """Wait until all of these tasks train on one executor, which nothing but a join brings about on one slot."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            seen = {at: self.task(at, task_id) for at, task_id in tasks.items()}
            gone = {at: task["status"] for at, task in seen.items() if task["status"] in ENDED}
            assert not gone, f"ended before all were together: {gone}"
            if all(task["status"] == "running" and task["placement"]["acknowledged_at"] for task in seen.values()):
                return
            time.sleep(0.05)  # several tasks at once: no long poll tells of all
        states = {at: (task["status"], task["waiting"]) for at, task in seen.items()}
        raise AssertionError(f"not together: {states}")

    def given(self, task_id: str) -> list[int]:
        """The pids of the executors that this task was given to, in order."""
        return [int(pid) for task, pid in _ATTACHED.findall(self.motet.log("worker").read_text()) if task == task_id]

    def on(self, pid: int, tasks: Mapping[int, str]) -> list[int]:
        """The tenants whose tasks this executor has."""
        live = {row["task_id"] for row in placements(self.motet, list(tasks.values())) if row["ended_at"] is None}
        return [at for at, task in tasks.items() if task in live and self.given(task)[-1:] == [pid]]

    def until_prepared(self, task_id: str) -> None:
        """Wait until an executor has prepared the task, which takes its first step after the one under way."""
        placement = until(lambda: re.findall(rf"placement (\S+) of task {task_id} ", self.motet.log("worker").read_text()))[-1]
        until(lambda: f"placement {placement} is prepared" in self.motet.log("worker").read_text())

    def restart_worker(self) -> None:
        """By a signal that lets it end nothing; its executors end with it. Nobody has a task there."""
        was = self.motet.pids["worker"]
        os.kill(was, signal.SIGKILL)
        until(lambda: self.motet.pids["worker"] != was)

    def executor(self) -> int:
        """The pid of the executor that got the last placement."""
        pid = int(_ATTACHED.findall(self.motet.log("worker").read_text())[-1][1])
        assert pid in self.motet.below("worker", "worker.executor")
        return pid

    # ---- read back -----------------------------------------------------------------------------------------------

    def pages(self, at: int, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        query: dict[str, Any] = {"limit": 100}
        while True:
            answer = self.tenants[at].http.get(path, params=query)
            assert answer.status_code == 200, answer.text
            page = answer.json()
            found += page["data"]
            if page.get("next_cursor") is None:
                return found
            query["cursor"] = page["next_cursor"]

    def jobs(self, at: int, task_id: str) -> list[dict[str, Any]]:
        return self.pages(at, f"/v1/tasks/{task_id}/jobs")

    def events(self, at: int, task_id: str) -> list[dict[str, Any]]:
        return self.motet.events(task_id, self.tenants[at].http)

    def adapters(self, at: int, task_id: str) -> list[dict[str, Any]]:
        return [adapter for adapter in self.pages(at, "/v1/adapters") if adapter["task_id"] == task_id]

    def usage(self, at: int, task_id: str) -> dict[str, Any]:
        return next(used for used in self.pages(at, "/v1/usage") if used["task_id"] == task_id)

    def left(self, at: int, task_id: str) -> Left:
        """What the task leaves; no step of a curve is told twice, and its adapters are its own jobs'."""
        curves: Curves = {}
        for series in self.tenants[at].http.get(f"/v1/tasks/{task_id}/metrics").json()["data"]:
            assert series["steps"] == sorted(set(series["steps"])), series
            curves[series["index"], series["series"]] = dict(zip(series["steps"], series["values"], strict=True))
        jobs, adapters = {job["id"]: job["index"] for job in self.jobs(at, task_id)}, self.adapters(at, task_id)
        for adapter in adapters:
            assert adapter["lineage"]["task_id"] == task_id
            assert adapter["lineage"]["job_id"] == adapter["job_id"]
            self.tenants[at].own.add(adapter["id"])
        files = {jobs[one["job_id"]]: {file["path"]: file["sha256"] for file in one["files"]} for one in adapters}
        return Left(curves, files, self.usage(at, task_id)["trained_tokens"])

    def told(self, at: int, task_id: str) -> str:
        """All that the tenant can read of its task, and of the cluster."""
        own = f"/v1/tasks/{task_id}"
        answers = [self.tenants[at].http.get(path) for path in (own, f"{own}/metrics", "/v1/schedule")]
        assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
        lists = (f"{own}/jobs", f"{own}/plan-history", "/v1/usage", "/v1/adapters", "/v1/files")
        pages = [str(self.pages(at, path)) for path in lists]
        return "\n".join([*(answer.text for answer in answers), str(self.events(at, task_id)), *pages])

    def history(self, at: int, task_id: str, kind: str) -> list[dict[str, Any]]:
        """What its plan history says of its placements and its leaves, oldest first."""
        changes = reversed(self.pages(at, f"/v1/tasks/{task_id}/plan-history"))
        return [change["said"] for change in changes if change["kind"] == kind]

    def told_to_run_alone(self, at: int, task_id: str) -> bool:
        return any(_ALONE.search(said.get("sentence") or "") for said in self.history(at, task_id, "placed"))

    def alone(self, at: int, task_id: str) -> list[tuple[int, int]]:
        """For each placement that was told to run alone: the losses that it was told for, and those since its last progress.
        Of a task that has ended."""
        steps, found = self._steps_left_with(at, task_id), []
        leaves = self.history(at, task_id, "left")
        row, before, left = 0, None, 0
        for change in reversed(self.pages(at, f"/v1/tasks/{task_id}/plan-history")):
            if change["kind"] == "left":
                row = row if steps[left] == before else 0  # it got further since the last loss
                row += leaves[left]["reason"] == LOST
                before, left = steps[left], left + 1
            elif change["kind"] == "placed" and (said := _ALONE.search(change["said"].get("sentence") or "")):
                found.append((int(said[1]), row))
        return found

    def _steps_left_with(self, at: int, task_id: str) -> list[dict[int, int]]:
        """The steps that its jobs kept at each leave: {job: step}, of those with any. A job that is at its checkpoint is not
        told to go back."""
        found: list[dict[int, int]] = []
        now: dict[int, int] = {}
        ran = False
        for event in self.events(at, task_id):
            data = event["data"]
            match event["type"]:
                case "curves":
                    now |= {one["job"]: one["to_step"] for one in data["curves"] if one["series"] == "train_loss"}
                case "rewind":
                    now[data["job"]] = data["step"]
                case "status":
                    if ran and data["status"] not in ENDED:
                        found.append({job: step for job, step in now.items() if step > 0})
                    ran = data["status"] == "running"
        return found


def alone_on(shared: SharedExecutor) -> list[Left]:
    """What each tenant's task leaves that shares with nobody."""
    tasks = [shared.submit(at, isolation="dedicated") for at in range(len(shared.specs))]
    assert [shared.ended(at, task)["status"] for at, task in enumerate(tasks)] == ["succeeded"] * len(tasks)
    left = [shared.left(at, task) for at, task in enumerate(tasks)]
    assert all(one.adapters for one in left)
    return left


def placements(motet: RunningStack, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of these tasks' placements, oldest first."""
    engine = sqlalchemy.create_engine(motet.database_url)
    with engine.connect() as connection:
        asked = sqlalchemy.text("SELECT * FROM placements WHERE task_id = ANY(:tasks) ORDER BY created_at")
        found = [dict(row._mapping) for row in connection.execute(asked, {"tasks": list(tasks)})]
    engine.dispose()
    return found
