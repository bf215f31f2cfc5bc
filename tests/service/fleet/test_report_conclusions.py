"""What reports bring about over real HTTP: adapters, winners, ends of tasks, learned speeds."""

import pytest
from sqlalchemy import select

from service.adapters.models import Adapter
from service.fleet.models import Node, Placement
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
