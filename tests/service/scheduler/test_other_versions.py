"""Tasks of another version of Motet: left alone with a reason, never failed, and in nobody's way; what runs goes on."""

import json
from datetime import timedelta

import pytest
from sqlalchemy import func, select, text, update

from contract.compatibility.lenient_documents import combine
from contract.compatibility.version import VERSION
from contract.task_spec import TaskSpec
from service.background.reconciler import replan_elapsed_delays, replan_newly_readable_tasks
from service.fleet.models import Placement
from service.tasks.models import Job, Task
from tests.service.fleet.scripted import completed, moved, points, throughput
from tests.service.scheduler.planned import start, validated
from tests.service.scheduler.sharing import SHORT, shared

NEWER = [  # what a newer version may have stored: a field, a value, another shape
    {"of_tomorrow": 1},
    {"training": {"max_seq_len": 64, "smoothing": 0.1}},
    {"objective": {"type": "of_tomorrow"}},
    {"early_exit": None, "precision": "fp3"},
]


@pytest.fixture
def store(database, dependencies):
    """Have a stored spec say more than this version knows, as a newer one would have written it."""

    def write(task_id, newer, config=None):
        with database.begin() as session:
            said = text("UPDATE tasks SET spec = spec || CAST(:newer AS jsonb), made_by = '9.8.7' WHERE id = :id")
            session.execute(said, {"id": task_id, "newer": json.dumps(newer)})
            if config is not None:
                changed = text("UPDATE jobs SET config = config || CAST(:more AS jsonb) WHERE task_id = :id")
                session.execute(changed, {"id": task_id, "more": json.dumps(config)})
        dependencies.estimate_cache.clear()

    return write


def row(database, task_id):
    with database.begin() as session:
        return session.get_one(Task, task_id)


def test_what_was_sent_is_stored_and_the_defaults_beside_it(tenant, database):
    file = tenant.file()
    made = tenant.post("/v1/tasks", json=tenant.spec(file)).json()
    kept = row(database, made["id"])
    assert kept.spec == tenant.spec(file)
    assert kept.made_by == VERSION
    assert kept.spec_defaults["training"] == {"epochs": 3, "max_steps": None, "weight_decay": 0.01, "max_grad_norm": 1.0}
    assert "max_seq_len" not in kept.spec_defaults["training"]
    whole = TaskSpec.model_validate(tenant.spec(file)).model_dump(mode="json")
    assert made["spec"] == tenant.get(f"/v1/tasks/{made['id']}").json()["spec"] == whole


def test_a_default_that_changed_since_changes_no_task(tenant, new_node, plan, database):
    task = tenant.task()["id"]
    with database.begin() as session:
        said = """UPDATE tasks SET spec_defaults = jsonb_set(spec_defaults, '{training,epochs}', '7') WHERE id = :id"""
        session.execute(text(said), {"id": task})
    node = new_node()
    plan()
    assert node.take(task).given.spec.training.epochs == 7


@pytest.mark.parametrize("newer", NEWER)
def test_a_task_of_another_version_waits_for_it_and_holds_up_nobody(tenant, new_node, plan, store, newer):
    theirs = tenant.task()["id"]
    store(theirs, newer)
    node, ours = new_node(slots=2), tenant.task()["id"]
    plan()
    assert [placement.task_id for placement in node.desired().placements] == [ours]
    told = tenant.get(f"/v1/tasks/{theirs}").json()
    assert told["status"] == "queued"
    assert told["waiting"]["code"] == "waiting_for_version"
    assert f"Motet {VERSION} cannot read" in told["waiting"]["sentence"]
    assert "version 9.8.7, which accepted it, can" in told["waiting"]["sentence"]


def test_an_unknown_field_is_logged_once(tenant, new_node, plan, again, store, dependencies, caplog):
    task = tenant.task()["id"]
    store(task, NEWER[1])
    new_node()
    for _ in range(3):
        dependencies.estimate_cache.clear()
        again()
    told = [record.getMessage() for record in caplog.records if task in record.getMessage() and "another version" in record.msg]
    assert [message for message in told if message.endswith("does not know training.smoothing")] == told[:1]


def test_the_job_of_another_version_makes_its_task_wait(tenant, new_node, plan, store):
    theirs = tenant.task()["id"]
    store(theirs, {}, config={"schedule": "of_tomorrow"})
    new_node()
    plan()
    assert tenant.get(f"/v1/tasks/{theirs}").json()["waiting"]["code"] == "waiting_for_version"


def test_a_field_at_its_default_keeps_no_older_version_from_a_task(tenant, new_node, plan, database):
    task = tenant.task()["id"]
    with database.begin() as session:
        said = """UPDATE tasks SET spec_defaults = spec_defaults || '{"of_tomorrow": null}' WHERE id = :id"""
        session.execute(text(said), {"id": task})
    node = new_node()
    plan()
    assert [placement.task_id for placement in node.desired().placements] == [task]


def test_the_version_that_can_read_a_task_asks_for_its_plan(tenant, new_node, plan, store, database, dependencies):
    task, node = tenant.task()["id"], new_node()
    store(task, {"of_tomorrow": 1})
    plan()
    replan_newly_readable_tasks(dependencies)
    assert plan() == 0, "this version still cannot read it"
    with database.begin() as session:
        session.execute(text("UPDATE tasks SET spec = spec - 'of_tomorrow' WHERE id = :id"), {"id": task})
    dependencies.estimate_cache.clear()
    replan_newly_readable_tasks(dependencies)
    assert plan() == 1
    assert [placement.task_id for placement in node.desired().placements] == [task]


@pytest.mark.parametrize("newer", NEWER)
def test_a_running_task_of_another_version_goes_on_to_its_end(tenant, new_node, plan, again, store, database, newer):
    """As after a rollback: its reports are applied, its node keeps it, its device is nobody else's."""
    node, task = new_node(), tenant.task()["id"]
    plan()
    placement = node.take(task)
    node.leases(placement.pulse())
    store(task, newer, config={"schedule": "of_tomorrow", "dora": True})
    state = node.desired()
    assert [one.placement_id for one in state.unchanged] == [placement.id]
    other = tenant.task()["id"]
    assert again() == 1
    assert tenant.get(f"/v1/tasks/{other}").json()["waiting"]["code"] == "waiting_for_capacity"
    placement.report(placement.attached())
    for job in (0, 1):
        placement.report(moved(job, "warmup"), points(job, range(1, 21)), points(job, [20], series="val_loss"), throughput())
        placement.report(moved(job, "training", 20), placement.checkpoint({job: 20}))
        kept = placement.adapter(job, loss=1.8)
        kept["manifest"]["lineage"]["config"] |= {"schedule": "of_tomorrow", "dora": True}
        placement.report(kept, completed(job))
    ended = tenant.get(f"/v1/tasks/{task}").json()
    assert ended["status"] == "succeeded"
    assert ended["winner"]["config"]["schedule"] == "of_tomorrow"
    assert ended["winner"]["config"]["dora"] is True
    with database.begin() as session:
        assert session.scalars(select(Placement.end_reason).where(Placement.task_id == task)).all() == ["finished"]


def test_a_running_task_of_another_version_that_outlasts_its_end_asks_for_one_plan(
    tenant, new_node, plan, store, database, dependencies
):
    """Its end moves like any other's, or the reconciler asked for a plan each time while somebody waits."""
    theirs = tenant.task()["id"]
    new_node()
    plan()
    tenant.task()
    plan()
    store(theirs, {"objective": {"type": "of_tomorrow"}})
    with database.begin() as session:
        session.execute(update(Placement).values(expected_end=func.clock_timestamp() - timedelta(minutes=5)))
    made = []
    for _ in range(2):
        replan_elapsed_delays(dependencies)
        made.append(plan())
    assert made == [1, 0]


def test_a_running_task_of_another_version_can_be_paused_and_lost(tenant, new_node, plan, again, store, database):
    node, task, lost = new_node(slots=2), tenant.task()["id"], tenant.task()["id"]
    plan()
    paused, gone = node.take(task), node.take(lost)
    node.leases(paused.pulse(), gone.pulse())
    for placement in (paused, gone):
        placement.report(placement.attached(), moved(0, "warmup"))
        store(placement.given.task_id, NEWER[3])
    assert tenant.post(f"/v1/tasks/{task}/pause").status_code == 200
    assert {one.placement_id: one.leave for one in node.desired().unchanged} == {paused.id: True, gone.id: False}
    paused.report(paused.checkpoint({0: 0}), {"kind": "detached"})
    assert tenant.get(f"/v1/tasks/{task}").json()["status"] == "paused"
    assert node.lost(gone).status_code == 204
    again()
    told = tenant.get(f"/v1/tasks/{lost}").json()
    assert (told["status"], told["waiting"]["code"]) == ("queued", "waiting_for_version")
    assert tenant.post(f"/v1/tasks/{task}/cancel").status_code == 200


@pytest.mark.parametrize("newer", NEWER)
def test_every_face_shows_a_task_of_another_version(tenant, new_node, plan, store, database, newer):
    node, task, waits = new_node(), tenant.task()["id"], tenant.task()["id"]
    plan()
    placement = node.take(task)
    placement.report(placement.attached(), moved(0, "warmup"), points(0, [1, 2]))
    for id in (task, waits):
        store(id, newer, config={"schedule": "of_tomorrow", "dora": True})
    with database.begin() as session:
        job = session.scalars(select(Job.id).where(Job.task_id == task, Job.index == 0)).one()
    native = ["/v1/tasks", f"/v1/tasks/{task}", f"/v1/tasks/{task}?wait=0", f"/v1/tasks/{task}/jobs", f"/v1/jobs/{job}"]
    native += [f"/v1/tasks/{task}/metrics", f"/v1/tasks/{task}/plan-history", "/v1/schedule", "/v1/usage", "/v1/adapters"]
    for path in [*native, "/openai/v1/fine_tuning/jobs", f"/openai/v1/fine_tuning/jobs/{task}", "/openai/v1/models"]:
        answer = tenant.get(path)
        assert answer.status_code == 200, (path, answer.text)
    shown = tenant.get(f"/v1/tasks/{task}").json()["spec"]
    assert combine(newer, shown) == shown
    assert tenant.get(f"/v1/jobs/{job}").json()["config"]["dora"] is True
    assert tenant.post("/v1/tasks/estimate", json=tenant.spec(tenant.file())).status_code == 200


@pytest.mark.parametrize("theirs", [0, 1, 2])
def test_a_crowded_executor_with_a_task_of_another_version_is_relieved_of_one_of_this(
    tenant, new_tenant, gpu, plan, again, store, theirs
):
    """Of the youngest that this version can read."""
    there = [*shared(tenant, new_tenant(), gpu, plan)]
    third = new_tenant().task(**SHORT)["id"]
    plan()
    there.append(start(gpu, third))
    store(there.pop(theirs).given.task_id, NEWER[2])
    there[0].report(throughput(seconds=2.0, share_seconds=1.0, slowdown=4.2))
    assert again() == 1
    assert [placement.placement_id for placement in gpu.desired().placements if placement.leave] == [there[-1].id]


@pytest.mark.parametrize("theirs", [0, 1])
def test_a_gpu_that_a_task_of_another_version_shares_is_not_taken_back(
    tenant, new_tenant, gpu, plan, again, store, database, dependencies, admin, theirs
):
    """It would not become free: the task of the other version stays."""
    there, owed = shared(tenant, tenant, gpu, plan), new_tenant()
    admin.request("PATCH", f"/v1/admin/tenants/{owed.tenant_id}", json={"weight": 3})
    waits = validated(dependencies, owed, isolation="dedicated")
    with database.begin() as session:
        long_ago = func.clock_timestamp() - timedelta(hours=1)
        session.execute(update(Task).where(Task.id == waits).values(queued_at=long_ago))
    spec = row(database, there[theirs].given.task_id).spec
    store(there[theirs].given.task_id, NEWER[2])
    again()
    assert [placement.leave for placement in gpu.desired().placements] == [False]
    store(there[theirs].given.task_id, {"objective": spec.get("objective", {"type": "sft"})})
    again()
    assert [placement.leave for placement in gpu.desired().placements] == [True, True]
