"""The planner on a real database: what it writes, what it drops, and that crashes and rivals leave nothing undone or twice."""

import json
from dataclasses import replace

from sqlalchemy import update

from service.fleet.models import Placement
from service.messaging.queue import Queue, QueueJob
from service.messaging.wakeups import NodeWakeups, stream_of
from service.scheduler import planner
from service.scheduler.core.plan_objective import objective
from service.scheduler.core.problem_json import problem_from_json
from service.scheduler.core.rules import backfill
from service.scheduler.models import Plan, PlanRequest, ThroughputProfile
from service.scheduler.pending_requests import plan_causes
from service.scheduler.planner import replan
from service.scheduler.replan_pacing import Pace, PlanCauses
from service.tasks.models import Task
from service.tasks.submission.stored_file_check import validate_due
from tests.service.fleet.scripted import completed, moved, throughput
from tests.service.scheduler.planned import live, rows, validated

FULL = PlanCauses(changed=False, room=False)  # arrivals alone, and no room for them


def test_a_task_that_fits_starts_at_once_and_the_plan_says_how(database, admin, new_node, plan):
    node, task = new_node(slots=2), admin.task()
    assert plan() >= 1
    assert plan() == 0
    (placement,) = live(database)
    assert (placement.task_id, placement.node_id, placement.device_indexes) == (task["id"], node.id, [0])
    seen = admin.get(f"/v1/tasks/{task['id']}").json()
    assert (seen["status"], seen["waiting"], seen["placement"]["node"]) == ("running", None, node.name)
    assert rows(database, PlanRequest) == []
    (kept,) = admin.get("/v1/admin/plans").json()["data"]
    assert (kept["method"], kept["decision"]["started"], kept["decision"]["dropped"]) == ("start", [task["id"]], [])
    assert problem_from_json(kept["problem"]).queued[0].id == task["id"]


def test_every_waiting_task_says_why_its_place_and_when(tenant, new_node, plan, database):
    new_node(slots=1, name="lonely")
    tasks = [tenant.task() for _ in range(3)] + [tenant.task(gpus=4)]
    plan()
    waiting = {task["id"]: tenant.get(f"/v1/tasks/{task['id']}").json() for task in tasks}
    running = [task for task in waiting.values() if task["status"] == "running"]
    queued = sorted((task for task in waiting.values() if task["status"] == "queued"), key=lambda t: t["waiting"]["place"])
    assert len(running) == 1
    assert [task["waiting"]["code"] for task in queued] == [*["waiting_for_capacity"] * 2, "no_node_fits"]
    assert [task["waiting"]["place"] for task in queued] == [1, 2, 3]
    assert queued[0]["waiting"]["expected_end"] == queued[1]["waiting"]["expected_start"]
    assert "asks for 4 CPU slots of one node, but the largest has 1" in queued[2]["waiting"]["sentence"]
    assert f"planned for lonely, held by {running[0]['id']}." in queued[0]["waiting"]["sentence"]
    for task in queued[:2]:
        for name in ("expected_start", "expected_end"):
            low, high = task["waiting"][f"{name}_interval"]
            assert low <= task["waiting"][name] <= high
    assert queued[2]["waiting"]["expected_start"] is None


def test_without_a_node_tasks_wait_for_one_and_start_when_it_joins(tenant, new_node, plan):
    task = tenant.task()
    plan()
    assert tenant.get(f"/v1/tasks/{task['id']}").json()["waiting"]["code"] == "no_node_fits"
    node = new_node()
    plan()
    assert node.take(task["id"]).given.task_id == task["id"]


def test_the_end_of_a_task_lets_the_next_one_start(tenant, new_node, plan):
    node, first, second = new_node(), tenant.task(), tenant.task()
    plan()
    placement = node.take(node.desired().placements[0].task_id)
    other = ({first["id"], second["id"]} - {placement.given.task_id}).pop()
    placement.report(moved(0, "warmup"), moved(1, "warmup"), completed(0, loss=None, best_step=None), placement.adapter(1, 1.0))
    placement.report(completed(1, loss=1.0))
    plan()
    assert [one.task_id for one in node.desired().placements] == [other]


def test_where_the_rules_are_not_optimal_the_stored_plan_is(database, dependencies, admin, new_node):
    """Four tasks on one node of 3 GPUs, for which the rules' order is not the best."""
    node = new_node(slots=3)
    with database.begin() as session:
        measured = {"base_model": "small", "precision": "bf16", "device_type": "cpu", "tokens": 128, "rows": 0, "width": 1}
        session.add(ThroughputProfile(**measured, mean_tokens=100.0, log_seconds=0.7, variance=0.0, measured=8))
    for jobs, gpus in ((6, 1), (8, 3), (2, 1), (7, 2)):  # better by completion and by slowdown
        space = {"learning_rate": [1e-4 * at for at in range(1, jobs + 1)], "batch_size": [4]}
        policy = {"policy": "none"}
        validated(dependencies, admin, search_space=space, gpus=gpus, early_exit=policy)
    replan(dependencies)
    (kept,) = admin.get("/v1/admin/plans").json()["data"]
    problem = problem_from_json(kept["problem"])
    assert kept["objective"] < objective(problem, backfill(problem))
    assert (kept["method"], kept["solver_status"], kept["bound"]) == ("cpsat", "OPTIMAL", kept["objective"])
    assert kept["decision"]["started"]
    assert len(node.desired().placements) == len(kept["decision"]["started"])


def test_an_arrival_has_room_where_one_node_has_as_many_free_devices(database, dependencies, tenant, new_node):
    def room(gpus):
        with database.begin() as session:
            session.execute(update(Task).where(Task.id == arrived).values(gpus=gpus))
        with database.begin() as session:
            return plan_causes(session).room

    small, large = new_node(slots=1), new_node(slots=3)
    for _ in range(2):  # on two devices, which they may share
        validated(dependencies, tenant, isolation="dedicated")
    replan(dependencies)
    free = max(node.slots - len(node.desired().placements) for node in (small, large))
    arrived = validated(dependencies, tenant)
    assert (room(free), room(free + 1)) == (True, False)
    with database.begin() as session:  # a device that several tasks share is held once
        session.execute(update(Placement).values(device_indexes=[0], node_id=large.id))
    assert (room(2), room(3)) == (True, False)


class Recorded(Queue):
    """Remembers what is put off, and sends nothing later."""

    def wake_later(self, job, seconds):
        self.put_off = job, seconds


def test_arrivals_before_a_full_fleet_are_put_off_say_so_and_go_at_once_when_something_changes(
    dependencies, tenant, new_node, database
):
    node, now = new_node(slots=1), [0.0]
    queue = Recorded(dependencies.settings.redis_url)
    mine, pace = replace(dependencies, queue=queue), Pace(lambda: now[0])

    def arrives():
        task = tenant.task()["id"]
        validate_due(dependencies.db, dependencies.storage, dependencies.queue)
        return task, replan(mine, pace)

    def why(task):
        return tenant.get(f"/v1/tasks/{task}").json()["waiting"]["code"]

    first, plans = arrives()
    assert plans >= 1
    assert [one.task_id for one in node.desired().placements] == [first]
    while pace.wait(FULL) == 0:  # the fleet is full: the next arrival is still looked at at once, those behind it are not
        told, _ = arrives()
    assert why(told) == "waiting_for_capacity"
    late, plans = arrives()
    assert (plans, why(late)) == (0, "not_planned")
    assert queue.put_off == (QueueJob.REPLAN, pace.wait(FULL))
    assert replan(mine, pace) == 0
    now[0] += queue.put_off[1]  # the wake-up comes
    assert replan(mine, pace) == 1
    assert why(late) == "waiting_for_capacity"
    later, plans = arrives()
    assert (plans, why(later)) == (0, "not_planned")
    assert tenant.post(f"/v1/tasks/{first}/cancel").status_code == 200
    assert replan(mine, pace) >= 1  # a device came free
    assert len(node.desired().placements) == 1
    assert why(later) == "waiting_for_capacity"


def test_an_arrival_that_may_fit_is_not_held_up_by_those_that_do_not(dependencies, tenant, new_node, database):
    node, now = new_node(slots=1), [0.0]
    mine, pace = replace(dependencies, queue=Recorded(dependencies.settings.redis_url)), Pace(lambda: now[0])
    for gpus in (4, 4, 4):
        validated(dependencies, tenant, gpus=gpus)
        replan(mine, pace)
    fits = validated(dependencies, tenant)
    assert pace.wait(FULL) > 0
    assert replan(mine, pace) >= 1
    assert [one.task_id for one in node.desired().placements] == [fits]


def test_what_starts_is_committed_before_the_others_are_told(dependencies, tenant, new_node, database, monkeypatch):
    node, tasks = new_node(), [validated(dependencies, tenant) for _ in range(2)]
    telling, seen = planner.announce_plan, []

    def look_first(*given):
        seen.append([one.task_id for one in node.desired().placements])
        telling(*given)

    monkeypatch.setattr(planner, "announce_plan", look_first)
    assert replan(dependencies) == 1
    (started,) = seen[0]
    (other,) = set(tasks) - {started}
    assert tenant.get(f"/v1/tasks/{other}").json()["waiting"]["code"] == "waiting_for_capacity"
    (kept,) = rows(database, Plan)
    assert (kept.decision["started"], kept.decision["dropped"]) == ([started], [])


def test_the_node_is_hinted_after_the_commit(dependencies, tenant, new_node, database):
    node = new_node()
    wakeups = NodeWakeups(dependencies.settings.redis_url)
    before = wakeups._redis.xlen(stream_of(node.id))
    seen = []

    class Watching(NodeWakeups):
        def desired_changed(self, node_id):
            seen.append(len(live(database)))
            super().desired_changed(node_id)

    validated(dependencies, tenant)
    replan(replace(dependencies, wakeups=Watching(dependencies.settings.redis_url)))
    assert seen == [1]
    assert wakeups._redis.xlen(stream_of(node.id)) == before + 1


def test_a_first_measurement_asks_for_a_new_plan_and_moves_the_expected_start(tenant, new_node, plan, dependencies):
    waits = replace(dependencies, settings=dependencies.settings.model_copy(update={"preempt_for_shorter_tasks": False}))
    node, first, second = new_node(), tenant.task(), tenant.task()
    plan()
    placement = node.take(node.desired().placements[0].task_id)
    other = ({first["id"], second["id"]} - {placement.given.task_id}).pop()
    before = tenant.get(f"/v1/tasks/{other}").json()["waiting"]["expected_start"]
    placement.report(placement.attached(steps=4000, warmup=200), throughput(tokens=10, seconds=10))
    assert replan(waits) == 1
    assert tenant.get(f"/v1/tasks/{other}").json()["waiting"]["expected_start"] > before


def test_a_plan_can_be_made_again_from_what_is_stored(admin, tenant, new_node, plan):
    new_node()
    for _ in range(3):
        tenant.task()
    plan()
    for kept in admin.get("/v1/admin/plans").json()["data"]:
        again = planner.solve(problem_from_json(json.loads(json.dumps(kept["problem"]))))
        assert [start.__dict__ for start in again.starts] == kept["decision"]["starts"]
