"""Seeded faults over a whole stack in bad company: a bad node, a bad task and an old worker. Nothing is lost or billed twice.

On CPU a resumed job repeats its steps bit for bit, so every task's curves must equal those of the first, which nothing hurt.
"""

import io
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.walk.chaos import Chaos
from tests.walk.faulty_workers import Killer, OldWorker
from tests.walk.running_stack import ENDED, RunningStack, running_stack, short_rows

LEASE = 6
QUICK = {
    "MOTET_HEARTBEAT_SECONDS": "1",
    "MOTET_LEASE_SECONDS": str(LEASE),
    "MOTET_RECONCILE_SECONDS": "1",
    "MOTET_QUARANTINE_SECONDS": "6",
    "MOTET_WORKER_CHECKPOINT_SECONDS": "2",
}
SPEC: dict[str, Any] = {
    "search_space": {"learning_rate": [3e-3, 1e-3], "rank": [4], "batch_size": [2]},
    "training": {"epochs": 3, "max_seq_len": 16},  # all rows are cut to this, so that each counts the same in the bill
    "early_exit": {"policy": "none", "eval_every": 24},
}
LONG: dict[str, Any] = {"training": {**SPEC["training"], "epochs": 100}}  # never over before its executor is killed
ROWS = 64


class Fleet:
    """Two healthy workers, a bad one and an old one; tasks, one of them bad."""

    def __init__(self, motet: RunningStack, folder: Path) -> None:
        self.motet = motet
        self.killer, self.old = Killer(motet, on={"worker-3"}), OldWorker(motet, folder)
        self.rows = motet.upload(short_rows(ROWS))

    def submit(self, **more: Any) -> str:
        spec = {"base_model": "base", "dataset": {"file_id": self.rows}, **SPEC, **more}
        while True:
            try:
                answer = self.motet.http.post("/v1/tasks", json=spec)
            except httpx.TransportError:
                time.sleep(0.2)  # the API was just killed; nothing tells when it is back
                continue
            if answer.status_code == 201:
                return str(answer.json()["id"])
            assert answer.status_code >= 500, answer.text
            time.sleep(0.2)

    def end_of(self, task: str, seconds: float) -> dict[str, Any]:
        """The task once it has ended, whatever becomes of the API meanwhile."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                answer = self.motet.http.get(f"/v1/tasks/{task}", params={"wait": 5})
            except httpx.TransportError:
                time.sleep(0.2)
                continue
            if answer.status_code == 200 and answer.json()["status"] in ENDED:
                return dict(answer.json())
        raise AssertionError(f"{task} has not ended within {seconds} s: {answer.text}")

    def calm(self) -> None:
        """Wait until the API answers: no fault is under way any more."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                if self.motet.http.get("/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.2)
        raise AssertionError("the API does not come back")

    def stop(self) -> None:
        self.killer.stop()
        self.old.stop()


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    with running_stack(folder / "state", workers=3, **QUICK) as motet:
        it = Fleet(motet, folder)
        try:
            yield it
        finally:
            it.stop()


def bill(motet: RunningStack) -> dict[str, dict[str, Any]]:
    answer = motet.http.get("/v1/usage", params={"limit": 100})
    assert answer.status_code == 200, answer.text
    return {task["task_id"]: task for task in answer.json()["data"]}


def assert_whole(it: Fleet, first: str, tasks: list[str], patience: float) -> None:
    """Every task succeeded with all points, each once, and with its adapters; no step is billed twice."""
    it.calm()
    curves = it.motet.curves(first)
    for task in tasks:
        ended = it.end_of(task, patience)
        assert ended["status"] == "succeeded", ended["error"]
        assert it.motet.curves(task) == curves
        assert {job["status"] for job in it.motet.jobs(task)} == {"completed"}
        adapter = it.motet.http.get(f"/v1/tasks/{task}/adapter")
        assert adapter.status_code == 200, adapter.text
        with tarfile.open(fileobj=io.BytesIO(adapter.content)) as archive:
            names = {name.rpartition("/")[2] for name in archive.getnames()}
        assert {"adapter_config.json", "adapter_model.safetensors"} <= names
    billed = bill(it.motet)
    whole = billed[first]["trained_tokens"]
    over = {task: billed[task]["trained_tokens"] for task in tasks if billed[task]["trained_tokens"] > whole}
    assert over == {}, f"more than {whole} tokens, which is all there are"


@pytest.mark.timeout(1200)
def test_faults_in_bad_company_lose_nothing(tmp_path: Path) -> None:
    """The short form: a fault of each kind."""
    with fleet(tmp_path) as it:
        first = it.submit()
        it.end_of(first, 400)
        bad = it.submit(**LONG)
        it.killer.tasks.add(bad)
        chaos = Chaos(it.motet, 1, ("worker", "worker-2"), apart=2.0, asleep=LEASE + 2)
        tasks = [it.submit() for _ in range(3)]
        chaos.wreak(chaos.kinds)
        assert_whole(it, first, tasks, patience=400)
        assert it.old.alive
        assert it.motet.task(bad)["status"] in ("queued", "running", "failed")
        it.motet.http.post(f"/v1/tasks/{bad}/cancel")


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("seed", [2, 3])
def test_twelve_minutes_of_faults_lose_nothing(tmp_path: Path, seed: int) -> None:
    """The long form, 12 minutes of faults for each seed, and then as long as the tasks take to end."""
    with fleet(tmp_path) as it:
        first = it.submit()
        it.end_of(first, 300)
        bad = it.submit(**LONG)
        it.killer.tasks.add(bad)
        chaos = Chaos(it.motet, seed, ("worker", "worker-2"), apart=12.0, asleep=LEASE + 2)
        tasks: list[str] = []
        until = time.monotonic() + 720
        while time.monotonic() < until:
            tasks += [it.submit(), it.submit()]
            chaos.wreak(3)
        assert_whole(it, first, tasks, patience=900)
        assert chaos.done.total() >= 40
        ended = it.end_of(bad, 900)
        assert ended["status"] == "failed"
        assert "executors in a row were lost while they trained this task" in ended["error"]
