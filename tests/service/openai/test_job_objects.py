"""A task as OpenAI's job: what it shows in each status, its events, its checkpoints."""

from datetime import timedelta

import pytest
from sqlalchemy import func, update

from service.fleet.models import Placement
from service.http.openai_ids import own_id
from service.tasks.lifecycle.event_log import EventKind, record
from service.tasks.models import Task
from service.usage.models import TaskUsageRecord
from tests.service.fleet.scripted import completed, moved, points, throughput

JOBS = "/openai/v1/fine_tuning/jobs"


@pytest.fixture
def make(tenant):
    """A job of two configurations; its id."""

    def made(**changes) -> str:
        body = {"model": "small", "training_file": tenant.file(), "search_space": {"learning_rate": [1e-4, 1e-3]}}
        response = tenant.post(JOBS, json=body | changes)
        assert response.status_code == 200, response.text
        return str(response.json()["id"])

    return made


@pytest.fixture
def told(tenant, make, database):
    """What the job's events say of these of its task, the newest last: level, message and data."""

    def said(*events: tuple[EventKind, dict]) -> list[tuple[str, str, dict]]:
        job = make()
        with database.begin() as session:
            task = session.get_one(Task, own_id(job))
            for kind, data in events:
                record(session, task, kind, data)
        found = tenant.get(f"{JOBS}/{job}/events", params={"limit": len(events)}).json()["data"]
        return [(one["level"], one["message"], one["data"]) for one in reversed(found)]

    return said


def test_tokens_are_told_once_the_job_has_ended_without_those_of_a_rewind(tenant, make, new_node, plan, database):
    node, job = new_node(), make()
    plan()
    taken = node.take(own_id(job))
    taken.report(taken.attached(), moved(0, "warmup"), moved(1, "warmup"), points(0, [1, 2]), throughput(tokens=1000))
    assert tenant.get(f"{JOBS}/{job}").json()["trained_tokens"] is None
    with database.begin() as session:
        of_task = TaskUsageRecord.task_id == own_id(job)
        session.execute(update(TaskUsageRecord).where(of_task).values(rewound_tokens=300))
    assert tenant.post(f"{JOBS}/{job}/cancel").status_code == 200
    assert tenant.get(f"{JOBS}/{job}").json()["trained_tokens"] == 700


def test_a_job_without_a_winner_has_its_curves_and_configurations_and_no_adapter(tenant, make):
    job = make()
    assert tenant.get(f"{JOBS}/{job}").json()["result_files"] == []
    key = job.removeprefix("ftjob-")
    metrics, rows, adapter = (f"file-{kind}-{key}" for kind in ("metrics", "jobs", "adapter"))
    assert tenant.get(f"/openai/v1/files/{metrics}").status_code == 404, "it has not ended"
    assert tenant.post(f"{JOBS}/{job}/cancel").json()["result_files"] == [metrics, rows]
    assert [tenant.get(f"/openai/v1/files/{id}").status_code for id in (metrics, rows, adapter)] == [200, 200, 404]


def test_the_seed_is_the_first_that_is_tried(make, tenant):
    assert tenant.get(f"{JOBS}/{make(search_space=None, seed=7)}").json()["seed"] == 7
    listed = {"method": "list", "jobs": [{"learning_rate": 1e-4, "seed": 5}, {"learning_rate": 1e-4, "seed": 3}]}
    assert tenant.get(f"{JOBS}/{make(search_space=listed)}").json()["seed"] == 5


def test_a_job_that_waits_again_is_not_told_the_end_of_an_earlier_run(tenant, make, new_node, plan, database):
    node, job = new_node(), make()
    plan()
    node.take(own_id(job))
    with database.begin() as session:
        late = func.now() + timedelta(days=400)
        session.execute(update(Placement).where(Placement.task_id == own_id(job)).values(expected_end=late))
    running = tenant.get(f"{JOBS}/{job}").json()
    assert running["estimated_finish"] > running["created_at"] + 300 * 24 * 3600
    assert tenant.post(f"{JOBS}/{job}/pause").status_code == 200
    with database.begin() as session:
        session.execute(update(Placement).where(Placement.task_id == own_id(job)).values(ended_at=func.now()))
    assert tenant.get(f"{JOBS}/{job}").json()["estimated_finish"] is None


def test_a_checkpoint_whose_adapter_was_deleted_is_not_listed(tenant, make, new_node, plan):
    node, job = new_node(), make()
    plan()
    taken = node.take(own_id(job))
    taken.report(taken.attached(), moved(0, "warmup"), moved(1, "warmup"), points(0, [1]), points(1, [1]))
    taken.report(taken.adapter(0, 1.25), taken.adapter(1, 1.5), completed(0, 20, 18, 1.25), completed(1, 20, 18, 1.5))
    kept, deleted = tenant.get(f"{JOBS}/{job}/checkpoints").json()["data"]
    assert tenant.delete(f"/openai/v1/models/{deleted['fine_tuned_model_checkpoint']}").status_code == 200
    assert tenant.get(f"{JOBS}/{job}/checkpoints").json()["data"] == [kept]


def test_what_went_wrong_in_a_job_is_a_warning(told):
    overlap = {"val_loss": 2.0, "rows": {"validation": 4, "overlap": 2}}
    failed = {"job": 0, "job_id": "job_0", "status": "failed", "step": 3, "error": "its loss is not finite"}
    said = told(
        (EventKind.BASE, overlap),
        (EventKind.BASE, {"val_loss": 2.0}),
        (EventKind.JOB, failed),
        (EventKind.JOB, failed | {"status": "exited", "error": None, "exit_reason": "underperforming"}),
        (EventKind.REWIND, {"job": 0, "step": -1, "status": "pending"}),
    )
    assert [level for level, _, _ in said] == ["warn", "info", "warn", "info", "warn"]
    assert said[2][1] == "Configuration 0 is failed at step 3: its loss is not finite"
    assert said[4][1] == "Configuration 0 goes on from step 0; what came after is trained again"


def test_metrics_are_the_newest_points_of_the_first_configuration(told):
    def curve(job: int, series: str, to_step: int, last: float) -> dict:
        return {"job": job, "series": series, "from_step": 1, "to_step": to_step, "last": last}

    curves = [curve(1, "train_loss", 7, 2.5), curve(1, "val_loss", 5, 2.75), curve(0, "train_loss", 9, 1.0)]
    ((_, message, data),) = told((EventKind.CURVES, {"curves": curves}))
    assert (data["step"], data["train_loss"], data["valid_loss"]) == (7, 2.5, 2.75)
    assert message.endswith("; configuration 0, step 9: train_loss 1.0000")


@pytest.mark.parametrize("number", ["1" * 19, "\u0661", "-1", ""])
def test_a_page_of_events_goes_on_after_an_event_of_the_job(tenant, make, number):
    job, other = make(), make()
    key, theirs = (id.removeprefix("ftjob-") for id in (job, other))
    for after in (f"ftevent-{theirs}-1", f"ftevent-task_{key}-{number}"):
        refused = tenant.get(f"{JOBS}/{job}/events", params={"after": after})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "after"), refused.text
    assert tenant.get(f"{JOBS}/{job}/events", params={"after": f"ftevent-{key}-1"}).json()["data"] == []


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_a_refused_action_speaks_of_a_fine_tuning_job(tenant, make, database, verb):
    unknown = tenant.post(f"{JOBS}/ftjob-none/{verb}")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["message"].startswith("There is no fine-tuning job 'ftjob-none'")
    with database.begin() as session:
        session.get_one(Task, own_id(job := make())).status = "succeeded"
    ended = tenant.post(f"{JOBS}/{job}/{verb}")
    assert ended.status_code == 400
    assert ended.json()["error"]["message"].startswith("The fine-tuning job ")
