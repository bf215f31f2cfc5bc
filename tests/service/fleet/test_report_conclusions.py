"""What reports bring about over real HTTP: adapters, winners, ends of tasks, learned speeds."""

import pytest
from sqlalchemy import select

from contract.row_scores import RowScores, t_quantile
from service.adapters.models import Adapter
from service.fleet.models import Node, Placement
from service.tasks.models import Job, TaskEvent
from tests.service.fleet.rows import dump
from tests.service.fleet.scripted import completed, exited, moved, points, throughput


def test_an_adapter_must_be_in_storage_and_of_this_job(database, placement):
    placement.report(moved(0, "warmup"), moved(1, "warmup"))
    event = placement.adapter(0, 1.5)
    before = dump(database)
    event["manifest"]["files"][0]["bytes"] += 1
    assert "bytes in storage" in placement.send(event).json()["detail"]
    event = placement.adapter(0, 1.5)
    event["manifest"]["files"][0]["sha256"] = "c" * 64
    assert "is not in storage" in placement.send(event).json()["detail"]
    assert "another job" in placement.send(placement.adapter(1, 1.5) | {"job": 0}).json()["detail"]
    assert (
        "already has its adapter" in placement.send(placement.adapter(0, 1.5), placement.adapter(0, 1.4, 19)).json()["detail"]
    )
    assert dump(database) == before


def test_the_lowest_loss_wins_and_equal_ones_go_to_the_lower_index(tenant, placement, task_of, jobs):
    placement.report(moved(0, "warmup"), moved(1, "warmup"))
    placement.report(placement.adapter(1, 1.5), completed(1, loss=1.5))
    assert task_of().status == "running"
    placement.report(placement.adapter(0, 1.5), completed(0, loss=1.5))
    assert task_of().status == "succeeded"
    assert task_of().winner_job_id == jobs()[0].id


def scored(*totals: float) -> dict:
    return {"metric": "loss", "totals": list(totals), "weights": [2] * len(totals)}


def test_scores_by_row_choose_the_winner_and_say_how_sure_that_is(tenant, placement, task_of):
    """Both ranks are 8 here, and the losses differ by less than one standard error: the lower mean wins, and beats the base."""
    placement.report({"kind": "base_evaluated", "val_loss": 2.0, "scores": scored(3.9, 4.1, 4.0, 4.0)})
    placement.report(moved(0, "warmup"), moved(1, "warmup"))
    placement.report(placement.adapter(0, 1.02) | {"scores": scored(2.1, 2.0, 2.0, 2.06)}, completed(0, loss=1.02))
    placement.report(placement.adapter(1, 1.01) | {"scores": scored(2.0, 2.1, 1.98, 2.0)}, completed(1, loss=1.01))
    task = tenant.get(f"/v1/tasks/{placement.given.task_id}").json()
    said = task["selection"]
    assert (task["winner"]["index"], said["rule"], said["tied"], said["rows"]) == (1, "one_standard_error", [0, 1], 4)
    assert said["value"]["mean"] == pytest.approx(1.01)
    assert said["value"]["low"] < said["value"]["mean"] < said["value"]["high"]
    assert said["beats_base"]
    assert said["verdict"].startswith("job 1 won: validation loss 1.0100 (")
    assert not any("learning rate" in tip for tip in said["suggestions"]), "the other one's is as good"


def test_a_surely_better_edge_is_worth_going_beyond(tenant, placement):
    placement.report({"kind": "base_evaluated", "val_loss": 2.0, "scores": scored(3.9, 4.1, 4.0, 4.0)})
    placement.report(moved(0, "warmup"), moved(1, "warmup"))
    placement.report(placement.adapter(0, 1.5) | {"scores": scored(3.1, 3.0, 2.98, 3.0)}, completed(0, loss=1.5))
    placement.report(placement.adapter(1, 1.01) | {"scores": scored(2.0, 2.1, 1.98, 2.0)}, completed(1, loss=1.01))
    tips = tenant.get(f"/v1/tasks/{placement.given.task_id}").json()["selection"]["suggestions"]
    assert any("learning rate" in tip and "by 0.5000 (standard error 0.0" in tip for tip in tips), tips


def test_where_nothing_beat_the_base_the_best_stays_and_the_task_says_so(tenant, placement, task_of, database):
    placement.report({"kind": "base_evaluated", "val_loss": 2.0, "scores": scored(3.9, 4.1, 4.0, 4.0)})
    placement.report(moved(0, "warmup"), moved(1, "warmup"))
    placement.report(placement.adapter(0, 2.0) | {"scores": scored(4.5, 3.5, 4.2, 3.7)}, completed(0, loss=2.0), exited(1, 3))
    assert task_of().status == "succeeded"
    task = tenant.get(f"/v1/tasks/{placement.given.task_id}").json()
    assert task["winner"]["index"] == 0
    assert task["selection"]["beats_base"] is False
    assert task["selection"]["verdict"].startswith("nothing beat the base: the best, job 0,")
    assert task["selection"]["suggestions"][0].startswith("check the data")
    with database.begin() as session:
        said = session.scalars(
            select(TaskEvent.data).where(TaskEvent.task_id == task["id"]).order_by(TaskEvent.number.desc()).limit(1)
        ).one()
    assert said["selection"]["verdict"] == task["selection"]["verdict"]
    assert tenant.get(f"/v1/tasks/{task['id']}/adapter").status_code == 200


def test_a_search_that_ended_at_its_cut_says_with_what_losses(tenant, placement):
    placement.report({"kind": "base_evaluated", "val_loss": 2.0, "scores": scored(3.9, 4.1, 4.0, 4.0)})
    placement.report(moved(0, "warmup"), moved(1, "warmup"))
    why = {"pattern": "no job beats the base at the warmup boundary", "base_val_loss": 2.0}
    placement.report(
        placement.adapter(0, 2.5) | {"scores": scored(5.0, 5.1, 4.9, 5.0)},
        exited(0, 3) | {"evidence": why | {"val_loss": 2.5}},
        exited(1, 3) | {"evidence": why | {"val_loss": 3.0}},
    )
    task = tenant.get(f"/v1/tasks/{placement.given.task_id}").json()
    assert task["selection"]["verdict"] == (
        "nothing has learned more than the base: check the data. After warmup the base alone has 2.0000 on the validation "
        "rows, the best of 2 jobs 2.5000"
    )


@pytest.mark.parametrize("lacking", [{"val_loss": None}, {"val_loss": "high"}, {}], ids=str)
def test_a_search_ends_without_the_numbers_that_an_exit_lacks(tenant, placement, lacking):
    """A loss that was not finite is null on the wire."""
    placement.report({"kind": "base_evaluated", "val_loss": 2.0, "scores": scored(3.9, 4.1, 4.0, 4.0)})
    placement.report(moved(0, "warmup"), moved(1, "warmup"))
    why = {"pattern": "no job beats the base at the warmup boundary", "base_val_loss": 2.0}
    placement.report(exited(0, 3) | {"evidence": why | lacking})
    last = placement.adapter(1, 2.5) | {"scores": scored(5.0, 5.1, 4.9, 5.0)}
    placement.report(last, exited(1, 3) | {"evidence": why | {"val_loss": 2.5}})
    task = tenant.get(f"/v1/tasks/{placement.given.task_id}").json()
    assert task["status"] == "succeeded"
    assert task["selection"]["verdict"].endswith("2.0000 on the validation rows, the best of 1 jobs 2.5000")


@pytest.mark.parametrize(
    "damaged",
    [
        *({"base_val_loss": said, "val_loss": 2.5} for said in ("x", {}, 10**400, True)),
        {"base_score": 0.5, "score": {}, "prompts": 2, "metric": "rouge"},
        {"base_score": 0.5},
        {"base_val_accuracy": [], "val_accuracy": 0.1, "rows": 40},
    ],
)
def test_a_search_ends_beside_damaged_evidence(tenant, placement, damage, damaged):
    placement.report({"kind": "base_evaluated", "val_loss": 2.0, "scores": scored(3.9, 4.1, 4.0, 4.0)})
    placement.report(moved(0, "warmup"), moved(1, "warmup"), exited(0, 3))
    damage(Job, "exit_evidence", damaged, (Job.task_id == placement.given.task_id) & (Job.index == 0))
    placement.report(placement.adapter(1, 2.5) | {"scores": scored(5.0, 5.1, 4.9, 5.0)}, exited(1, 3))
    task = tenant.get(f"/v1/tasks/{placement.given.task_id}").json()
    assert task["status"] == "succeeded"
    assert task["selection"]["verdict"].startswith("nothing beat the base")
    assert tenant.get(f"/v1/tasks/{placement.given.task_id}/jobs").status_code == 200


def test_a_search_over_beta_that_ended_at_its_cut_says_with_what_accuracies(tenant, placement):
    wrong, even = {"metric": "error", "totals": [1.0] * 4}, {"metric": "error", "totals": [0.5] * 4}
    placement.report({"kind": "base_evaluated", "val_loss": 0.7, "scores": even})
    placement.report(moved(0, "warmup"), moved(1, "warmup"))
    why = {"pattern": "no job beats the base at the warmup boundary", "base_val_accuracy": 0.5, "rows": 40, "val_loss": 0.9}
    placement.report(
        placement.adapter(0, 0.9) | {"scores": wrong},
        exited(0, 3) | {"evidence": why | {"val_accuracy": 0.1}},
        exited(1, 3) | {"evidence": why | {"val_accuracy": 0.05}},
    )
    task = tenant.get(f"/v1/tasks/{placement.given.task_id}").json()
    assert task["selection"]["verdict"] == (
        "nothing has learned more than the base by validation accuracy: check the data. After warmup the base alone has 0.5000 "
        "on 40 pairs, the best of 2 jobs 0.1000"
    )


def test_a_winner_is_the_best_of_those_that_were_ranked_out_too(placement, tenant):
    scores = [{"totals": totals} for totals in ([1.0, 1.125], [1.25, 1.0])]
    placement.report({"kind": "base_evaluated", "val_loss": 1.125, "scores": scores[1]})
    placement.report(moved(0, "warmup"), moved(1, "warmup"), points(0, [1, 2]), points(1, [1, 2]))
    placement.report(moved(0, "parked", 2, warmup_val_loss=1.9), moved(1, "training", 2, warmup_val_loss=1.7), exited(0, 2))
    placement.report(placement.adapter(1, 1.25) | {"scores": scores[0]}, completed(1, 20, 18, 1.25))
    found = tenant.get(f"/v1/tasks/{placement.given.task_id}").json()["selection"]
    width = t_quantile(1, 1 - 0.05 / 2) / t_quantile(1)
    alone = RowScores(**scores[1]).minus(RowScores(**scores[0])).interval
    assert found["compared"] == 2
    assert found["gain"]["high"] - found["gain"]["low"] == pytest.approx(width * (alone[1] - alone[0]))


def test_a_search_that_ended_at_its_cut_says_where_its_rates_were_too_high(placement, tenant):
    """By what the jobs were ranked by, since the best alone keeps an adapter. Job 0 has a rate of 1e-4, job 1 of 1e-3."""
    base, lower, higher = ({"totals": [loss, loss + 0.5]} for loss in (1.0, 2.0, 4.0))
    placement.report({"kind": "base_evaluated", "val_loss": 1.25, "scores": base})
    placement.report(moved(0, "warmup"), moved(1, "warmup"), points(0, [1, 2]), points(1, [1, 2]))
    for job, scores, loss in ((0, lower, 2.25), (1, higher, 4.25)):
        placement.report(moved(job, "parked", 2, warmup_val_loss=loss, boundary_scores=scores))
    evidence = {"evidence": {"base_val_loss": 1.25, "val_loss": 2.25, "rows": 2}}
    placement.report(placement.adapter(0, 2.25, 2) | {"scores": lower}, exited(0, 2, loss=2.25) | evidence)
    placement.report(exited(1, 2, loss=4.25) | evidence)
    found = tenant.get(f"/v1/tasks/{placement.given.task_id}").json()["selection"]
    assert found["verdict"].startswith("nothing has learned more than the base: check the data. After warmup ")
    assert found["suggestions"][1].startswith("try lower learning rates, such as 1e-05: 0.0001 is the smallest you gave")


def test_an_exit_with_an_adapter_competes(placement, task_of, jobs):
    placement.report(moved(0, "warmup"), moved(1, "warmup"))
    placement.report(
        placement.adapter(0, 1.0, 5), exited(0, 9, "overfitting", 1.0), placement.adapter(1, 1.1), completed(1, loss=1.1)
    )
    assert task_of().winner_job_id == jobs()[0].id


def test_a_task_without_any_adapter_fails_and_says_why(placement, task_of):
    placement.report(moved(0, "warmup"), moved(1, "warmup"))
    placement.report({"kind": "job_failed", "job": 0, "step": 1, "error": "loss is not finite"}, completed(1, 20, None, None))
    assert task_of().status == "failed"
    assert task_of().error == "1 of 2 jobs failed and no other kept an adapter; job 0: loss is not finite"


def test_a_placement_that_cannot_go_on_ends_the_task_but_keeps_what_was_reached(placement, task_of, jobs):
    placement.report(moved(0, "warmup"), placement.adapter(0, 1.5), completed(0, loss=1.5), moved(1, "warmup"))
    placement.report({"kind": "placement_failed", "error": "every row is longer than the model"})
    assert task_of().status == "succeeded"
    assert (jobs()[1].status, jobs()[1].error) == ("failed", "every row is longer than the model")


def test_a_placement_that_cannot_begin_fails_the_task(placement, task_of):
    placement.report({"kind": "placement_failed", "error": "unknown architecture"})
    assert (task_of().status, task_of().error) == ("failed", "unknown architecture")


def test_throughput_is_summed_and_teaches_the_nodes_speed(database, placement):
    placement.report(throughput(steps=10, tokens=1000, seconds=1.5, evaluation_tokens=50, evaluation_seconds=0.5))
    placement.report(throughput(steps=5, tokens=1000, seconds=1.0))
    with database.begin() as session:
        row = session.get_one(Placement, placement.id)
        assert (row.steps, row.tokens, row.micro_batches, row.forwards) == (15, 2000, 15, 15)
        assert (row.train_seconds, row.evaluation_tokens, row.evaluation_seconds) == (2.5, 50, 0.5)
        assert session.get_one(Node, placement.node.id).tokens_per_second == {"small": pytest.approx(0.7 * 500 + 0.3 * 1000)}


def test_reports_wake_those_who_wait_for_the_task(tenant, placement):
    before = tenant.get(f"/v1/tasks/{placement.given.task_id}")
    placement.report({"kind": "base_evaluated", "val_loss": 2.75})
    after = tenant.get(f"/v1/tasks/{placement.given.task_id}")
    assert after.json()["version"] > before.json()["version"]
    assert after.json()["base_val_loss"] == 2.75
    assert after.headers["etag"] != before.headers["etag"]


def test_a_cancelled_tasks_placement_is_over_and_keeps_its_adapters(database, tenant, placement):
    placement.report(moved(0, "warmup"), placement.adapter(0, 1.5), completed(0, loss=1.5))
    version = placement.node.desired().version
    assert tenant.post(f"/v1/tasks/{placement.given.task_id}/cancel").status_code == 200
    assert placement.send(points(1, [1])).json()["code"] == "fence_stale"
    desired = placement.node.desired()
    assert desired.placements == []
    assert desired.version != version
    with database.begin() as session:
        assert session.scalars(select(Adapter)).one().val_loss == 1.5
