"""Texts at milestones of training over the wire: stored by job and milestone, listed, as CSV, in events, told to placements."""

import json
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import select

from contract.compatibility.capabilities import understood
from contract.states import JobStatus, RequeueReason
from service.background.retention import forget
from service.scheduler.estimate.survival import ReportedProgress
from service.scheduler.estimate.text_tokens import texts_due
from service.tasks.lifecycle.rewind import rewind
from service.tasks.models import MilestoneEvaluation, Task, TextEvaluation
from service.tasks.stored_specs import spec_of
from tests.service.fleet.scripted import completed, moved, points
from tests.service.fleet.test_ledger import NOTHING
from tests.service.fleet.test_text_evaluations import ASKED, SAMPLE, texts


def halfway(job: int, milestone: int, rouge: float, **more) -> dict:
    return texts(job, 0.0, rouge, milestone=milestone, prompt_scores={}, **{"step": milestone, **more})


@pytest.fixture
def placed(tenant, new_node, plan):
    node = new_node(said={"capabilities": sorted(understood())})
    task = tenant.task(evaluation={**ASKED, "milestones": [0.25, 0.5]}, select_by="rouge")
    plan()
    taken = node.take(task["id"])
    taken.report(taken.attached(), moved(0, "warmup"), moved(1, "warmup"), points(0, [1]), points(1, [1]))
    return taken


def read(tenant, taken, **params):
    return tenant.get(f"/v1/tasks/{taken.given.task_id}/evaluations", params=params)


def test_milestones_are_listed_apart_from_the_ends_and_decide_nothing(tenant, placed):
    placed.report(texts(None, 0.0, 0.125), halfway(1, 5, 1.0), halfway(0, 10, 0.5), halfway(0, 5, 0.25, step=7))
    placed.report(halfway(1, 10, 0.0, scores={}, samples=[], error="no memory"))
    found = read(tenant, placed, at="milestones").json()["data"]
    assert [(one["index"], one["milestone"], one["step"]) for one in found] == [(0, 5, 7), (0, 10, 10), (1, 5, 5), (1, 10, 10)]
    assert [one["scores"].get("rouge") for one in found] == [0.25, 0.5, 1.0, None]
    assert (found[0]["samples"], found[3]["error"]) == ([SAMPLE], "no memory")
    for job, rouge, loss in ((0, 0.75, 1.25), (1, 0.5, 1.5)):
        placed.report(texts(job, 0.0, rouge), placed.adapter(job, loss), completed(job, 20, 18, loss))
    ends = read(tenant, placed).json()["data"]
    assert [(one["index"], one["milestone"], one["scores"]["rouge"]) for one in ends] == [
        (None, None, 0.125),
        (0, None, 0.75),
        (1, None, 0.5),
    ]
    assert read(tenant, placed, at="milestones").json()["data"] == found
    task = tenant.get(f"/v1/tasks/{placed.given.task_id}").json()
    assert (task["winner"]["index"], task["selection"]["metric"]) == (0, "rouge")


def test_pages_and_csv_of_milestones(tenant, new_tenant, placed):
    placed.report(*(halfway(job, step, 0.5) for job in (0, 1) for step in (5, 10)))
    whole, cursor, pages = read(tenant, placed, at="milestones").json()["data"], None, []
    for _ in whole:
        page = read(tenant, placed, at="milestones", limit=1, **({"cursor": cursor} if cursor else {})).json()
        pages, cursor = [*pages, *page["data"]], page["next_cursor"]
    assert (pages, cursor) == (whole, None)
    assert len(whole) == 4
    end_cursor = read(tenant, placed, at="end", limit=1).json()["next_cursor"]
    for wrong in ("x", end_cursor or "WzBd"):
        assert read(tenant, placed, at="milestones", cursor=wrong).status_code == 422
    assert read(tenant, placed, at="dawn").status_code == 422
    lines = tenant.get(f"/v1/tasks/{placed.given.task_id}/evaluations.csv", params={"at": "milestones"}).text.splitlines()
    assert lines[0] == "job,job_id,step,prompts,metric,score"
    assert [line.split(",")[0:3:2] for line in lines[1:]] == [
        [job, step] for job in "01" for step in ("5", "10") for _ in ASKED["metrics"]
    ]
    assert tenant.get(f"/v1/tasks/{placed.given.task_id}/evaluations.csv").text.splitlines() == lines[:1]
    other = new_tenant()
    assert read(other, placed, at="milestones").status_code == 404


def test_an_event_of_the_job_tells_the_scores(tenant, placed):
    placed.report(halfway(1, 5, 0.25, step=7), halfway(0, 5, 0.0, scores={}, samples=[], error="no memory"))
    for job in (0, 1):
        placed.report(placed.adapter(job, 1.25), completed(job, 20, 18, 1.25))
    lines = tenant.get(f"/v1/tasks/{placed.given.task_id}/events").text.splitlines()
    told = [json.loads(line.removeprefix("data: "))["data"] for line in lines if line.startswith("data: ")]
    first, second = (one for one in told if "milestone" in one)
    assert (first["job"], first["milestone"], first["evaluated_step"]) == (1, 5, 7)
    assert first["scores"] == {"exact_match": 0.0, "rouge": 0.25}
    assert (second["job"], second["scores"], second["evaluation_error"]) == (0, {}, "no memory")
    told = tenant.get(f"/openai/v1/fine_tuning/jobs/{placed.given.task_id}/events").json()["data"]
    assert {"Configuration 1 wrote texts at step 7: exact_match 0.0000, rouge 0.2500",
            "Configuration 0 wrote texts at step 5: no memory"} < {one["message"] for one in told}  # fmt: skip


def test_the_next_placement_is_told_what_is_known_and_a_repeated_milestone_replaces_the_first(tenant, placed, database):
    placed.report(halfway(1, 5, 0.25), halfway(1, 10, 0.5))
    placed.report(halfway(1, 10, 0.75))
    assert [one["scores"]["rouge"] for one in read(tenant, placed, at="milestones").json()["data"]] == [0.25, 0.75]
    assert [job.milestone for job in placed.node.desired().placements[0].jobs] == [0, 10]
    with database.begin() as session:
        task = session.get_one(Task, placed.given.task_id, with_for_update=True)
        rewind(session, task, RequeueReason.NODE_LOST)
    assert len(read(tenant, placed, at="milestones").json()["data"]) == 2, "a rewind takes none away"


def test_a_milestone_of_a_job_that_has_ended_or_never_was_is_refused(placed):
    placed.report(texts(0, 0.5, 0.25), placed.adapter(0, 1.25), completed(0, 20, 18, 1.25))
    for job, milestone, why in ((7, 5, "not 7"), (0, 5, "job 0 has ended as completed"), (1, 0, "milestone")):
        refused = placed.send(halfway(job, milestone, 0))
        assert refused.status_code == 422
        assert why in refused.text


def test_the_texts_of_a_deleted_task_go_with_it(tenant, placed, dependencies, database):
    for job in (0, 1):
        placed.report(halfway(job, 5, 0.25), texts(job, 0.0, 0.5), placed.adapter(job, 1.25), completed(job, 20, 18, 1.25))
    id, tables = placed.given.task_id, (MilestoneEvaluation, TextEvaluation)

    def left() -> list[int]:
        with database.begin() as session:
            return [len(list(session.scalars(select(table).where(table.task_id == id)))) for table in tables]

    assert left() == [2, 2]
    assert tenant.delete(f"/v1/tasks/{id}").status_code == 204
    forget(dependencies.db, NOTHING)
    assert left() == [0, 0]
    with database.begin() as session:
        assert session.get_one(Task, id).emptied_at is not None


def lasts(estimate: dict) -> timedelta:
    """From its start to its end: two estimates begin at different moments."""
    began, ends = (datetime.fromisoformat(estimate[name]) for name in ("expected_start", "expected_end"))
    return ends - began


def test_an_estimate_says_how_many_tokens_texts_take_at_most(tenant, new_node, database):
    new_node(said={"capabilities": sorted(understood())})
    asked = {**ASKED, "max_prompts": 3, "max_new_tokens": 10}
    spec = tenant.spec(tenant.file(), early_exit={"policy": "none"})
    found = {
        count: tenant.post(
            "/v1/tasks/estimate", json={**spec, "evaluation": {**asked, "milestones": [0.5, 0.75][:count]}}
        ).json()
        for count in (0, 2)
    }
    assert tenant.post("/v1/tasks/estimate", json=spec).json()["text_tokens"] is None
    each = found[0]["text_tokens"] / 3  # the base, two jobs
    assert found[2]["text_tokens"] == pytest.approx(each * 7)
    assert each > 3 * 10
    plain = tenant.post("/v1/tasks/estimate", json=spec).json()
    for one in found.values():
        more = {part: one["gpu_seconds"][part] - plain["gpu_seconds"][part] for part in ("expected", "low", "high")}
        assert [more["expected"], more["high"]] == pytest.approx([one["text_gpu_seconds"]] * 2)
        assert 0 < more["low"] < more["high"]
    assert found[2]["text_gpu_seconds"] == pytest.approx(found[0]["text_gpu_seconds"] * 7 / 3)
    assert plain["text_gpu_seconds"] is None
    long = tenant.post("/v1/tasks/estimate", json={**spec, "evaluation": {**asked, "max_new_tokens": 8000}}).json()
    assert lasts(long) > lasts(found[2]) > lasts(plain)
    task = tenant.task(evaluation={**asked, "milestones": [0.5]}, early_exit={"policy": "asha"})
    with database.begin() as session:
        of_asha = spec_of(session.get_one(Task, task["id"]))
    jobs = [ReportedProgress(JobStatus.PENDING, 0, 20, 5, 4, False)] * 2
    assert texts_due(of_asha, jobs, 2, 6).tokens == (1 + 2 + 2) * 2 * 16
    kept = replace(jobs[0], status=JobStatus.TRAINING, promoted=True, step=10)
    assert texts_due(of_asha, [kept, replace(kept, status=JobStatus.EXITED)], 2, 6).evaluations == 1, "its end"
