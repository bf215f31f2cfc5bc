"""A node whose executors die, and a worker that dies of what it reads, beside a healthy one: nobody's task is lost by them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from motet.api.client import Client
from motet.local.doctor import examine

from tests.walk.faulty_workers import Killer, OldWorker
from tests.walk.running_stack import RunningStack, running_stack, short_rows

PATIENT = {
    "MOTET_HEARTBEAT_SECONDS": "1",
    "MOTET_LEASE_SECONDS": "30",
    "MOTET_RECONCILE_SECONDS": "1",
    "MOTET_QUARANTINE_SECONDS": "300",  # after two losses a node rests for a twelfth of it
}
QUICK = {**PATIENT, "MOTET_LEASE_SECONDS": "6"}  # where a lease is to end, of what a node does not take up
SPEC: dict[str, Any] = {
    "search_space": {"learning_rate": [1e-3], "rank": [4], "batch_size": [2]},
    "training": {"epochs": 4, "max_seq_len": 64},
    "early_exit": {"policy": "none", "eval_every": 30},
}


@pytest.fixture
def motet(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RunningStack]:
    with running_stack(tmp_path / "state", workers=2, **request.param) as it:
        yield it


def nodes(motet: RunningStack) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in motet.as_admin("GET", "/v1/admin/nodes")["data"]}


def faults_found(motet: RunningStack) -> list[str]:
    return [found.what for found in examine(lambda: Client(motet.url, motet.demo, motet.admin)) if not found.well]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("motet", [PATIENT], indirect=True, ids=["patient"])
def test_three_tasks_beside_a_node_whose_executors_die(motet: RunningStack) -> None:
    killer = Killer(motet, on={"worker-2"}, seconds=0.3)  # before a task is over, however fast the machine is
    try:
        rows = motet.upload(short_rows(48))
        tasks = [motet.submit(dataset={"file_id": rows}, **SPEC) for _ in range(3)]
        for task in tasks:
            assert motet.ended(task, seconds=400)["status"] == "succeeded"
        told = nodes(motet)
        while told["worker-2"]["losses"] < 3:  # the healthy node was quick: the bad one is given more, until it is known
            more = [motet.submit(dataset={"file_id": rows}, **SPEC) for _ in range(2)]
            for task in more:
                assert motet.ended(task, seconds=400)["status"] == "succeeded"
            told = nodes(motet)
    finally:
        killer.stop()
    assert {name for name, _ in killer.killed} == {"worker-2"}
    assert (told["worker-2"]["status"], told["worker"]["status"]) == ("quarantined", "ready")
    assert any("node worker-2 is quarantined: " in what for what in faults_found(motet))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("motet", [QUICK], indirect=True, ids=["quick"])
def test_an_old_worker_that_dies_of_what_it_reads_holds_up_nobody(motet: RunningStack, tmp_path: Path) -> None:
    old = OldWorker(motet, tmp_path)
    try:
        rows = motet.upload(short_rows(48))
        tasks = [motet.submit(dataset={"file_id": rows}, **SPEC) for _ in range(6)]
        for task in tasks:
            assert motet.ended(task, seconds=400)["status"] == "succeeded"
        assert old.alive, "its heartbeats go on, and its thread is dead"
        told = nodes(motet)["old"]
        assert told["losses"] > 0
        assert told["capabilities"] is None
        assert any("node old is " in what for what in faults_found(motet))
    finally:
        old.stop()
