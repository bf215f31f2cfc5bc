"""Texts at the warmup boundary over the wire: kept by job, shown beside the warmup loss, given back until the cut."""

import pytest
from sqlalchemy import select

from contract.compatibility.capabilities import understood
from contract.row_scores import RowScores
from contract.states import JobStatus, RequeueReason
from service.scheduler.estimate.survival import ReportedProgress
from service.scheduler.estimate.text_tokens import texts_due
from service.tasks.lifecycle.rewind import rewind
from service.tasks.models import Job, Task
from service.tasks.stored_specs import spec_of
from tests.service.fleet.scripted import exited, moved, points
from tests.service.fleet.test_text_evaluations import ASKED, texts, unscored

FOUR = {"learning_rate": [1e-4, 2e-4, 3e-4, 4e-4], "batch_size": [4]}


def scored(job: int, rouge: float, **more) -> dict:
    """The texts of a job where its warmup ends, after step 2."""
    each = {"rouge": [rouge - 0.125, rouge + 0.125]}
    return texts(job, 0.5, rouge, **{"milestone": 2, "step": 2, "prompt_scores": each, **more})


def unscorable(job: int) -> dict:
    return unscored(job, "no memory") | {"milestone": 2, "step": 2}


@pytest.fixture
def placed(tenant, new_node, plan):
    node = new_node(said={"capabilities": sorted(understood())})
    task = tenant.task(search_space=FOUR, evaluation=ASKED, select_by="rouge")
    plan()
    taken = node.take(task["id"])
    taken.report(taken.attached(), *(moved(job, "warmup") for job in range(4)), *(points(job, [1, 2]) for job in range(4)))
    return taken


@pytest.fixture
def lost(rested):
    def act(placement):
        assert placement.node.lost(placement).status_code == 204
        rested()
        return placement.node.take(placement.given.task_id)

    return act


def jobs_of(tenant, taken) -> list[dict]:
    return tenant.get(f"/v1/tasks/{taken.given.task_id}/jobs").json()["data"]


def test_the_score_stands_beside_the_warmup_loss_and_among_the_milestones(tenant, placed):
    placed.report(moved(0, "parked", 2, warmup_val_loss=1.5), scored(0, 0.25), unscorable(1))
    first, second, *_ = jobs_of(tenant, placed)
    assert (first["warmup_val_loss"], first["warmup_score"], second["warmup_score"]) == (1.5, 0.25, None)
    id = placed.given.task_id
    listed = tenant.get(f"/v1/tasks/{id}/evaluations", params={"at": "milestones"}).json()["data"]
    assert [(one["index"], one["milestone"], one["scores"], one["error"]) for one in listed] == [
        (0, 2, {"exact_match": 0.5, "rouge": 0.25}, None),
        (1, 2, {}, "no memory"),
    ]
    lines = tenant.get(f"/v1/tasks/{id}/evaluations.csv", params={"at": "milestones"}).text.splitlines()
    assert f"0,{first['id']},2,2,rouge,0.25" in lines


def test_scores_are_given_back_until_the_cut_is_decided(tenant, placed, lost):
    """Of a job that has ended, that is parked, that is parked and unscorable, and that goes back to before its boundary."""
    placed.report(texts(None, 0.0, 0.125))
    placed.report(*(moved(job, "parked", 2, warmup_val_loss=1.5 + job) for job in range(4)))
    placed.report(placed.checkpoint({0: 2, 1: 2, 2: 2, 3: 1}), scored(0, 0.25), scored(1, 0.5), scored(3, 0.75))
    placed.report(unscorable(2), exited(0, 2))
    again = lost(placed)
    sent = {job: RowScores.of_results([mean - 0.125, mean + 0.125]) for job, mean in ((0, 0.25), (1, 0.5), (3, 0.75))}
    given = again.given.jobs
    assert {job.index: job.boundary_text_scores for job in given} == {**sent, 2: None}
    assert [job.milestone for job in given] == [2, 2, 2, 2], "and nobody is asked again"
    assert [job.status for job in given] == ["exited", "parked", "parked", "warmup"]
    assert again.given.base_texts_evaluated
    assert again.given.base_text_scores == RowScores.of_results([0.125 - 0.012, 0.125 + 0.012])
    assert jobs_of(tenant, again)[3]["warmup_score"] == 0.75, "its weights there will be the same"
    again.report(moved(3, "parked", 2, warmup_val_loss=4.5), moved(1, "training", 2), exited(2, 2), exited(3, 2))
    after = lost(again)
    assert [job.boundary_text_scores for job in after.given.jobs] == [None] * 4, "nobody's rank is open any more"


def test_texts_that_are_made_again_replace_those_of_before_and_a_rewind_takes_none_away(placed, database):
    placed.report(scored(1, 0.25))
    placed.report(scored(1, 0.5))
    with database.begin() as session:
        rewind(session, session.get_one(Task, placed.given.task_id, with_for_update=True), RequeueReason.NODE_LOST)
    with database.begin() as session:
        assert session.scalars(select(Job.warmup_score).order_by(Job.index)).all() == [None, 0.5, None, None]


def test_where_the_loss_decides_no_scores_of_prompts_are_given_back(tenant, new_node, plan):
    node = new_node(said={"capabilities": sorted(understood())})
    task = tenant.task(search_space=FOUR, evaluation={**ASKED, "milestones": [0.5]})
    plan()
    taken = node.take(task["id"])
    taken.report(taken.attached(), moved(0, "warmup"), points(0, [1, 2]), texts(None, 0, 0.5), scored(0, 0.5, prompt_scores={}))
    assert jobs_of(tenant, taken)[0]["warmup_score"] is None
    given = taken.node.desired().placements[0]
    assert (given.base_texts_evaluated, given.base_text_scores, given.jobs[0].boundary_text_scores) == (True, None, None)


def test_a_search_that_ends_since_its_texts_are_worse_than_the_bases_says_so(tenant, placed):
    why = {"pattern": "no job beats the base at the warmup boundary", "metric": "rouge", "base_score": 0.5, "prompts": 2}
    placed.report(texts(None, 0.0, 0.5), texts(0, 0.0, 0.25), placed.adapter(0, 1.25))
    for job in range(4):
        placed.report(exited(job, 2) | {"evidence": {**why, "score": 0.25 - job / 16, "val_loss": 1.5}})
    found = tenant.get(f"/v1/tasks/{placed.given.task_id}").json()
    assert found["selection"]["verdict"] == (
        "nothing has learned more than the base by rouge: check the data. After warmup the base alone has 0.5000 on 2 prompts, "
        "the best of 4 jobs 0.2500"
    )


def test_an_estimate_counts_the_texts_at_the_boundary(tenant, database):
    counted = {}
    for by in ("val_loss", "rouge"):
        task = tenant.task(search_space=FOUR, evaluation={**ASKED, "max_new_tokens": 10}, select_by=by)
        with database.begin() as session:
            jobs = [ReportedProgress(JobStatus.PENDING, 0, 20, 5, 4, False)] * 4
            counted[by] = texts_due(spec_of(session.get_one(Task, task["id"])), jobs, 2, 6).tokens
    assert counted == {"val_loss": (1 + 4) * 2 * 16, "rouge": (1 + 4 + 4) * 2 * 16}
