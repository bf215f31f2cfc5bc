"""Rolling upgrades and rollbacks: this version and the next one beside each other, as real processes on one database.

The next version is made from this tree (next_version.py). No task fails and no step is trained twice, with
either version planning, serving and training, and with the objects in a folder or in a bucket.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.service.storage.object_servers import CREDENTIALS, object_server
from tests.service.upgrade.fleet import QUICK, Fleet, Load
from tests.service.upgrade.next_version import ROOT, SPEC_FIELD, make_next_version

OLD, NEXT = "old", "next"


@pytest.fixture
def fleet(request, stack, settings_for, environment_of, free_port, tmp_path: Path) -> Iterator[Fleet]:
    """Its objects are in a folder, or in a bucket of the server that `request.param` names."""
    number = make_next_version(tmp_path / "next")
    trees = {OLD: ROOT, NEXT: tmp_path / "next"}
    with ExitStack() as opened:
        where = {}
        if request.param != "folder":
            where = opened.enter_context(object_server(request.param, tmp_path)).settings(prefix="upgraded")
        settings = settings_for(stack.new_database(), tmp_path, port=free_port(), **QUICK, **where)
        environment = environment_of(settings) | CREDENTIALS
        made = Fleet(settings, environment, tmp_path, stack.valkey.url("node"), trees, number)
        opened.callback(made.end)
        made.begin(OLD)
        made.plan_with(OLD)
        made.work_with(OLD)
        yield made


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("fleet", ["folder", pytest.param("moto", marks=pytest.mark.slow)], indirect=True)
def test_each_part_of_either_version_works_with_all_others_of_the_other(fleet):
    file = fleet.upload()
    fleet.migrate(NEXT)
    fleet.must_succeed(fleet.submit(file))  # the old planner, service and worker on the new database
    fleet.api(NEXT)
    fleet.must_succeed(fleet.submit(file))  # the old worker and planner with the new service
    newer = fleet.submit(file, **{SPEC_FIELD: 3}, training={"epochs": 100, "max_steps": 60, "max_seq_len": 32})
    waits = fleet.until(newer, lambda task: (task["waiting"] or {}).get("code") == "waiting_for_version")
    assert f"version {fleet.next_number}, which accepted it, can" in waits["waiting"]["sentence"]
    fleet.retire(OLD)
    fleet.work_with(NEXT)
    fleet.plan_with(NEXT)
    fleet.until(newer, lambda task: task["progress"]["steps_done"] > 0)
    fleet.api(OLD)
    fleet.stop_planning_with(NEXT)
    last = fleet.submit(file)
    shown = fleet.until(newer, lambda task: task["status"] == "succeeded")
    assert shown["spec"][SPEC_FIELD] == 3
    fleet.must_succeed(last)  # the new worker with the old service and planner
    fleet.must_have_lost_nothing(tasks=4)
    fleet.must_hand_out(last)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fleet", ["folder", "moto"], indirect=True)
def test_two_hundred_tasks_over_an_upgrade_and_its_rollback(fleet):
    fleet.stop("worker-old")
    fleet.work_with(OLD, slots=4)
    load, pause = Load(fleet, fleet.upload(), tasks=200, seconds=0.5), threading.Event()
    upgrade = (
        lambda: fleet.migrate(NEXT),
        lambda: fleet.plan_with(NEXT),
        lambda: fleet.api(NEXT),
        lambda: fleet.work_with(NEXT, slots=4),
        lambda: fleet.stop_planning_with(OLD),
        lambda: fleet.retire(OLD),
    )
    rollback = (
        lambda: fleet.plan_with(OLD),
        lambda: fleet.work_with(OLD, slots=4),
        lambda: fleet.api(OLD),
        lambda: fleet.retire(NEXT),
        lambda: fleet.stop_planning_with(NEXT),
    )
    for done, step in enumerate((*upgrade, *rollback), 1):
        while not load.failure and fleet.succeeded() < done * 15:  # so that each step is made under load
            pause.wait(0.5)
        step()
    load.must_end(seconds=600)
    fleet.must_have_lost_nothing(tasks=200)
    for task in (load.tasks[0], load.tasks[-1]):
        fleet.must_hand_out(task)
