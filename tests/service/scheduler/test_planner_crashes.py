"""Planners that are killed, slow, late or many at once: every task is placed once, and nothing is lost."""

import signal
import subprocess
import sys
import threading

import pytest
from sqlalchemy import func, update

from service.background.reconciler import replan_missed_requests
from service.dependencies import Dependencies
from service.fleet.models import Node, Placement
from service.messaging.plan_requests import request_plan
from service.scheduler import planner
from service.scheduler.models import Plan, PlannerLease, PlanRequest
from service.scheduler.planner import plan_once, replan
from service.scheduler.state import planner_lease
from service.scheduler.state.planner_lease import LeaseLost
from tests.service.scheduler.planned import live, rows, validated


def test_a_task_that_moved_on_while_the_plan_was_made_is_dropped_and_the_others_stand(
    dependencies, tenant, new_node, database, monkeypatch
):
    node = new_node(slots=2)
    gone, stays = validated(dependencies, tenant), validated(dependencies, tenant)
    thinking = planner.solve

    def meanwhile(problem):
        if problem.queued and not live(database):
            assert tenant.post(f"/v1/tasks/{gone}/cancel").status_code == 200
        return thinking(problem)

    monkeypatch.setattr(planner, "solve", meanwhile)
    replan(dependencies)
    assert [one.task_id for one in node.desired().placements] == [stays]
    assert rows(database, Plan)[0].decision["dropped"] == [gone]
    assert tenant.get(f"/v1/tasks/{gone}").json()["status"] == "cancelled"


def test_a_node_lost_while_the_plan_was_made_takes_nothing(dependencies, tenant, new_node, database, monkeypatch):
    new_node(slots=1)
    validated(dependencies, tenant)
    thinking = planner.solve

    def meanwhile(problem):
        with database.begin() as session:
            session.execute(update(Node).values(status="lost"))
        return thinking(problem)

    monkeypatch.setattr(planner, "solve", meanwhile)
    replan(dependencies)
    assert live(database) == []


def test_only_the_requests_it_read_are_answered(dependencies, tenant, new_node, database, monkeypatch):
    new_node()
    validated(dependencies, tenant)
    thinking, late = planner.solve, []

    def meanwhile(problem):
        if not late:
            with database.begin() as session:
                request = PlanRequest(reason="late")
                session.add(request)
                session.flush()
                late.append(request.id)
            assert late[0] in [request.id for request in rows(database, PlanRequest)]
        return thinking(problem)

    monkeypatch.setattr(planner, "solve", meanwhile)
    assert replan(dependencies) == 2
    assert rows(database, PlanRequest) == []


def test_a_plan_under_a_lost_lease_is_rejected_whole(dependencies, tenant, new_node, database):
    new_node()
    validated(dependencies, tenant)
    with database.begin() as session:
        session.add(PlannerLease(id=1, token="another", until=func.clock_timestamp() + planner_lease.LEASE))
    requests = len(rows(database, PlanRequest))
    with pytest.raises(LeaseLost):
        plan_once(dependencies, "mine")
    assert (live(database), rows(database, Plan), len(rows(database, PlanRequest))) == ([], [], requests)
    assert replan(dependencies) == 0  # its holder will see to the requests
    with database.begin() as session:
        session.execute(update(PlannerLease).values(until=func.clock_timestamp() - planner_lease.LEASE))
    assert replan(dependencies) >= 1  # a lease that ran out is taken over
    assert len(live(database)) == 1


def test_planners_at_once_place_every_task_once_and_no_device_twice(dependencies, settings, tenant, new_node, database):
    nodes = [new_node(slots=2) for _ in range(2)]
    tasks = [validated(dependencies, tenant) for _ in range(6)]
    gate, failures = threading.Barrier(4), []

    def plan_again_and_again():
        own = Dependencies.of(settings)
        gate.wait()
        try:
            for _ in range(6):
                with own.db.begin() as session:
                    request_plan(session, own.queue, "race")
                replan(own)
        except Exception as error:  # noqa: BLE001  (whatever it is, the test shows it)
            failures.append(error)
        finally:
            own.db.engine.dispose()

    threads = [threading.Thread(target=plan_again_and_again) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert rows(database, PlanRequest) == []
    placed = live(database)
    assert len(placed) == 4
    assert len({placement.task_id for placement in rows(database, Placement)}) == 4
    for node in nodes:
        assert sorted(i for p in placed if p.node_id == node.id for i in p.device_indexes) == [0, 1]
    assert {placement.task_id for placement in placed} <= set(tasks)


PLANNER = """
import os, signal
from dataclasses import replace
from service.messaging.wakeups import NodeWakeups
from service.dependencies import Dependencies
from service.scheduler import planner
from service.settings import Settings

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Deadly(NodeWakeups):
    desired_changed = die

dependencies = Dependencies.of(Settings.load())
{act}
"""
HINTING = "planner.replan(replace(dependencies, wakeups=Deadly(dependencies.settings.redis_url)))"
THINKING = "planner.solve = die; planner.replan(dependencies)"


@pytest.fixture
def killed_planner(settings, environment_of):
    """Run a planner that is killed at a certain moment."""

    def run(act: str) -> None:
        script = PLANNER.format(act=act)
        ended = subprocess.run([sys.executable, "-c", script], env=environment_of(settings), capture_output=True, check=False)
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()

    return run


def test_a_planner_killed_between_writing_and_hinting_has_lost_nothing(
    killed_planner, dependencies, tenant, new_node, database
):
    node = new_node()
    version = node.leases().desired_version
    task = validated(dependencies, tenant)
    killed_planner(HINTING)
    (placement,) = live(database)
    assert rows(database, PlanRequest) != []  # the placement is committed first; the next plan tells the rest
    # nobody hinted the node, but its next heartbeat tells it that something changed
    assert node.leases().desired_version > version
    assert node.take(task).given.placement_id == placement.id
    # the dead planner's lease keeps others out only until it runs out
    waiting = validated(dependencies, tenant)
    with database.begin() as session:
        session.execute(update(PlannerLease).values(until=func.clock_timestamp() - planner_lease.LEASE))
        session.execute(update(PlanRequest).values(created_at=func.clock_timestamp() - planner_lease.LEASE))
    replan_missed_requests(dependencies)
    assert rows(database, PlanRequest) == []
    assert tenant.get(f"/v1/tasks/{waiting}").json()["waiting"]["code"] == "waiting_for_capacity"


def test_a_planner_killed_before_it_wrote_leaves_the_request(killed_planner, dependencies, tenant, new_node, database):
    node = new_node()
    task = validated(dependencies, tenant)
    killed_planner(THINKING)
    assert live(database) == []
    assert rows(database, PlanRequest) != []
    with database.begin() as session:
        session.execute(update(PlannerLease).values(until=func.clock_timestamp() - planner_lease.LEASE))
    replan(dependencies)
    assert node.take(task)
