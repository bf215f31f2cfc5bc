"""Preemption for shorter tasks on real rows: a long task is paused for a short one, is told why, and goes on after it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy import func, update

from service.fleet.models import Placement
from service.scheduler.core.decision import ShortPreemption
from service.scheduler.models import ThroughputProfile
from service.scheduler.planner import replan
from service.scheduler.state import snapshot
from service.scheduler.state.preemption.preemption_costs import RESUME_SECONDS
from service.scheduler.state.preemption.shorter_first import notice
from tests.service.fleet.scripted import completed, moved, points
from tests.service.scheduler.planned import start, validated
from tests.service.scheduler.sharing import shared


@pytest.fixture
def slow_steps(database):
    """A measured speed at which a task of one epoch takes minutes, and one of 100 hours."""
    with database.begin() as session:
        measured = {"base_model": "small", "precision": "bf16", "device_type": "cpu", "tokens": 128, "rows": 0, "width": 1}
        session.add(ThroughputProfile(**measured, mean_tokens=100.0, log_seconds=0.7, variance=0.0, measured=8))


@pytest.fixture
def paused(new_tenant, new_node, plan, slow_steps):
    """A long task on the only slot, asked to leave for a short one of the same tenant."""
    node, owner = new_node(slots=1), new_tenant()
    long = owner.task(training={"max_seq_len": 64, "epochs": 100})["id"]
    plan()
    held = start_long(node, long)
    short = owner.task(name="the short one")["id"]
    plan()
    return node, owner, long, short, held


def start_long(node, task_id):
    """As `start`, with as many steps as an hour's task has."""
    placement = node.take(task_id)
    node.leases(placement.pulse())
    placement.report(placement.attached(steps=2000, warmup=100), moved(0, "warmup"), moved(1, "warmup"))
    return placement


def detach(held):
    held.report(points(0, [1, 2]), points(1, [1, 2]), held.checkpoint({0: 2, 1: 2}), {"kind": "detached"})


def test_a_long_task_is_paused_for_a_short_one_and_goes_on_after_it(paused, plan, again):
    node, owner, long, short, held = paused
    assert [placement.leave for placement in node.desired().placements] == [True]
    waiting = owner.get(f"/v1/tasks/{short}").json()["waiting"]
    assert f"CPU slots of {node.name} are being given back for it" in waiting["sentence"]
    assert waiting["expected_start"] is not None
    again()
    assert [placement.task_id for placement in node.desired().placements] == [long], "asked once"
    detach(held)
    plan()
    assert [placement.task_id for placement in node.desired().placements] == [short]
    victim = owner.get(f"/v1/tasks/{long}").json()
    assert (victim["status"], victim["requeue_reason"], victim["progress"]["steps_done"]) == ("queued", "preempted", 4)
    assert 'Paused for "the short one", which takes about' in victim["requeue_detail"]
    assert victim["waiting"]["place"] == 1
    assert victim["waiting"]["expected_start"] is not None
    ran = start(node, short)
    again()
    assert [placement.task_id for placement in node.desired().placements] == [short], "the victim takes nothing back"
    ran.report(completed(0, loss=None, best_step=None), completed(1, loss=None, best_step=None))
    again()
    (resumed,) = node.desired().placements
    assert resumed.task_id == long
    assert [job.checkpoint.step for job in node.take(long).given.jobs if job.checkpoint] == [2, 2], "no step is lost"


def test_a_quota_that_was_lowered_meanwhile_holds_for_reserved_gpus(paused, plan, admin):
    node, owner, _, short, held = paused
    admin.request("PATCH", f"/v1/admin/tenants/{owner.tenant_id}", json={"quotas": {"running_gpus": 0}})
    detach(held)
    plan()
    assert node.desired().placements == []
    assert owner.get(f"/v1/tasks/{short}").json()["waiting"]["code"] == "waiting_for_quota"
    admin.request("PATCH", f"/v1/admin/tenants/{owner.tenant_id}", json={"quotas": {"running_gpus": 1}})
    plan()
    assert [placement.task_id for placement in node.desired().placements] == [short]


def test_who_leaves_reserved_gpus_in_turn_does_not_get_them_back(paused, plan, again):
    """They are reserved for the task that it leaves for now, and no longer for itself."""
    node, owner, _, short, held = paused
    detach(held)
    plan()
    ran = start_long(node, short)
    next_ = owner.task(name="next")["id"]
    again()
    assert [placement.leave for placement in node.desired().placements] == [True], "it takes longer than was expected"
    detach(ran)
    again()
    assert [placement.task_id for placement in node.desired().placements] == [next_]


@pytest.mark.parametrize("lapsed", [False, True])
def test_reserved_gpus_wait_for_their_task_until_that_lapses(paused, plan, again, database, lapsed):
    """A task that came since would go first. They wait for one whose executor ended, too."""
    node, owner, _, short, held = paused
    urgent = owner.task(name="urgent", priority=100)["id"]
    plan()
    detach(held)
    if lapsed:
        with database.begin() as session:
            session.execute(update(Placement).values(ended_at=func.now() - timedelta(seconds=121)))
    again()
    assert [placement.task_id for placement in node.desired().placements] == [urgent if lapsed else short]
    if not lapsed:
        assert node.lost(start(node, short)).status_code == 204
        again()
        assert [placement.task_id for placement in node.desired().placements] == [short]


def test_another_tenants_owner_reads_no_names(new_tenant, new_node, plan, slow_steps):
    node, owner, other = new_node(slots=2), new_tenant(), new_tenant()
    held = {}
    for _ in range(2):  # the second is beyond the owner's due once the other tenant comes
        task = owner.task(training={"max_seq_len": 64, "epochs": 100})["id"]
        plan()
        held[task] = start_long(node, task)
    short = other.task()["id"]
    plan()
    (leaving,) = (placement.task_id for placement in node.desired().placements if placement.leave)
    detach(held[leaving])
    plan()
    assert short in {placement.task_id for placement in node.desired().placements}
    said = owner.get(f"/v1/tasks/{leaving}").json()
    assert "Paused for another tenant's task, which takes about" in said["requeue_detail"]
    assert short not in str(said)


def test_an_owner_is_told_how_long_the_task_takes_and_how_much_longer_it_would_have_waited():
    tasks = {id: SimpleNamespace(id=id, name=None, tenant_id="ada") for id in ("t", "v")}
    said = notice(SimpleNamespace(tasks=tasks), ShortPreemption("t", "n", ("v",), seconds=600, sooner=7800), "v")
    assert "takes about 10 min and would have waited for about 2 h 10 min longer" in said


def test_the_estimate_counts_on_it(new_tenant, new_node, plan, slow_steps, dependencies):
    node, owner = new_node(slots=1), new_tenant()
    plan()
    long = owner.task(training={"max_seq_len": 64, "epochs": 100})["id"]
    plan()
    start_long(node, long)
    said = owner.post("/v1/tasks/estimate", json=owner.spec(owner.file())).json()
    began, ends = (datetime.fromisoformat(said[name]) for name in ("expected_start", "expected_end"))
    assert (began - datetime.now(UTC)).total_seconds() < 60
    assert (ends - began).total_seconds() < 3600


def test_an_estimate_of_several_plans_those_who_wait_around_it(new_tenant, new_node, plan, slow_steps):
    """The second follows the first at once, before the long task that was paused for it."""
    node, owner = new_node(slots=1), new_tenant()
    long = owner.task(training={"max_seq_len": 64, "epochs": 100})["id"]
    plan()
    start_long(node, long)
    file = owner.file()
    said = owner.post("/v1/batches/estimate", json={"tasks": [owner.spec(file)] * 2, "objective": "weighted_completion"}).json()
    first, second = sorted(said["tasks"], key=lambda one: one["expected_start"])
    began = [datetime.fromisoformat(one["expected_start"]) for one in (first, second)]
    assert (began[0] - datetime.now(UTC)).total_seconds() < 60
    assert datetime.fromisoformat(first["expected_end"]) <= began[1] < began[0] + timedelta(hours=1)
    assert second["waiting"] is not None


def test_an_admin_can_switch_it_off(new_tenant, new_node, plan, slow_steps, dependencies, database):
    off = replace(dependencies, settings=dependencies.settings.model_copy(update={"preempt_for_shorter_tasks": False}))
    node, owner = new_node(slots=1), new_tenant()
    long = owner.task(training={"max_seq_len": 64, "epochs": 100})["id"]
    plan()
    start_long(node, long)
    validated(off, owner)
    replan(off)
    assert [placement.leave for placement in node.desired().placements] == [False]
    with database.begin() as session:
        problem = snapshot.read(session, off).problem
    assert (problem.leave, problem.dues, problem.running[0].preemptible, problem.queued[0].preempts) == (None, (), None, 0)


def test_none_is_preempted_that_shares_its_executor_or_is_of_a_batch(
    gpu, new_node, tenant, new_tenant, plan, database, dependencies
):
    """To stop one of those who share frees nothing; a batch is planned as one."""
    shared(tenant, new_tenant(), gpu, plan)
    new_node(slots=1)
    made = tenant.post("/v1/batches", json={"tasks": [tenant.spec(tenant.file())]})
    assert made.status_code == 201, made.text
    plan()
    with database.begin() as session:
        running = snapshot.read(session, dependencies).problem.running
    assert len(running) >= 2
    assert {run.preemptible for run in running} == {None}


def test_what_a_victim_has_waited_and_run_counts(paused, plan, database, dependencies):
    _, _, long, short, held = paused
    detach(held)
    plan()
    with database.begin() as session:
        session.execute(update(Placement).where(Placement.task_id == long).values(waited_seconds=50))
        session.execute(
            update(Placement)
            .where(Placement.task_id == long)
            .values(created_at=func.now() - timedelta(seconds=300), ended_at=func.now())
        )
        own = {"waited_seconds": 40, "created_at": func.now() - timedelta(seconds=100)}
        session.execute(update(Placement).where(Placement.task_id == short).values(own))
    with database.begin() as session:
        seen = snapshot.read(session, dependencies)
    victim = next(task for task in seen.problem.queued if task.id == long)
    assert (victim.ran, victim.waited >= 50) == (300, True)
    (run,) = seen.problem.running
    assert run.preemptible is not None
    assert (run.id, run.preemptible.resume) == (short, RESUME_SECONDS)
    assert run.preemptible.ran >= 100
    assert run.preemptible.age == run.preemptible.ran + 40
