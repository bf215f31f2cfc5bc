"""Reports: applied once, in order, under their fence; and what each event makes of jobs, curves, adapters and the task."""

import math
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, delete, event, select, text

from contract.job_schedule import JobSchedule
from service.fleet.models import Node
from service.scheduler.models import ThroughputProfile
from service.storage.local_storage import LocalStorage
from service.tasks.models import PointChunk
from tests.service.background.test_queue import until
from tests.service.fleet.rows import dump
from tests.service.fleet.scripted import completed, exited, moved, points, throughput
from tests.service.lock_waits import waiting_for_locks


def chunks(database, job_id, series="train_loss"):
    with database.begin() as session:
        own = select(PointChunk).where(PointChunk.job_id == job_id, PointChunk.series == series)
        return list(session.scalars(own.order_by(PointChunk.hidden_by.nulls_first(), PointChunk.first_step)))


def test_a_whole_task_over_the_wire(tenant, placement, jobs, task_of):
    placement.report(moved(0, "warmup"), moved(1, "warmup"), points(0, [1, 2]), points(1, [1, 2]))
    placement.report(points(0, [2], [1.9], "val_loss"), moved(0, "parked", 2, warmup_val_loss=1.9))
    placement.report(points(1, [2], [1.7], "val_loss"), moved(1, "training", 2, warmup_val_loss=1.7))
    placement.report(exited(0, 2, loss=1.9), points(1, list(range(3, 21))), throughput(steps=20, tokens=4000, seconds=4))
    placement.report(placement.adapter(1, 1.25), completed(1, 20, 18, 1.25))

    first, second = jobs()
    assert (first.status, first.exit_reason, first.exit_evidence) == ("exited", "underperforming", {"rank": 3, "kept": 1})
    assert (second.status, second.step, second.best_step, second.best_val_loss) == ("completed", 20, 18, 1.25)
    assert second.promoted
    assert second.warmup_val_loss == 1.7
    task = tenant.get(f"/v1/tasks/{placement.given.task_id}").json()
    assert task["status"] == "succeeded"
    assert task["winner"]["index"] == 1
    assert task["rows"] == {"train": 18, "validation": 2, "trend": None, "truncated": 0, "skipped": 0, "overlap": None}
    assert task["selection"]["rule"] == "lowest_loss"  # its worker reported no scores
    assert placement.node.desired().placements == []
    # what the executor still had to say once the last job ended is neither lost nor an error
    placement.report(throughput(steps=1), {"kind": "detached"})


def test_a_job_that_diverged_at_a_rung_keeps_nobody_from_reading_its_task(tenant, new_node, plan):
    """Under asha nodes are told the losses of ended jobs at their rungs; a NaN is none, and the job did not reach it."""
    node = new_node()
    space = {"learning_rate": [1e-4, 1e-3, 1e-2], "batch_size": [4]}
    asha = {"policy": "asha", "warmup_fraction": 0.1, "reduction_factor": 2}
    task = tenant.task(search_space=space, early_exit=asha, training={"epochs": 20})
    plan()
    taken = node.take(task["id"])
    taken.report(taken.attached(steps=400, warmup=40))
    rungs = JobSchedule.of(taken.given.spec, taken.given.jobs[0].config, 18).rungs
    assert len(rungs) > 2
    taken.report(moved(0, "warmup"), points(0, rungs[:1], [1.5], "val_loss"))
    taken.report(moved(0, "training", rungs[0], warmup_val_loss=1.5), points(0, rungs[1:2], [None], "val_loss"))
    taken.report(exited(0, rungs[1], "diverging", loss=1.5))
    taken.report(moved(1, "warmup"), points(1, rungs[:2], [1.25, 1.0], "val_loss"))
    taken.report(moved(1, "training", rungs[0], warmup_val_loss=1.5), exited(1, rungs[1]) | {"rung_losses": [1.5, 1.125]})
    (found,) = node.desired().placements
    assert [job.rung_losses for job in found.jobs] == [[1.5], [1.5, 1.125], []], "those that it was ranked by, if it told them"


def test_reports_and_heartbeats_do_not_wait_for_who_refers_to_their_node(placement, database):
    """A report of another placement of the node does, from the second time on that it writes its placement's row. Each waited
    for the other's lock: a deadlock."""
    with database.begin() as session:
        session.execute(select(Node.id).where(Node.id == placement.node.id).with_for_update(read=True, key_share=True))
        placement.report(moved(0, "warmup"), points(0, [1]), throughput(steps=1))
        placement.report(placement.checkpoint({0: 1}))
        assert placement.node.leases(placement.pulse()).leases


def test_profiles_are_locked_in_one_order_whatever_the_reports(placement, database):
    """Two nodes that report steps of the same sizes in opposite orders waited for each other."""
    with database.begin() as session:
        session.execute(delete(ThroughputProfile))
    sizes = [throughput(steps=1, tokens=tokens) for tokens in (4000, 1000)]
    placement.report(moved(0, "warmup"), *sizes)
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as session:
            profiles = select(ThroughputProfile.tokens).with_for_update(skip_locked=True)
            session.execute(profiles.where(ThroughputProfile.tokens == 1024))
            reported = pool.submit(placement.report, *sizes)
            until(lambda: waiting_for_locks(database))
            assert session.scalars(profiles.where(ThroughputProfile.tokens == 4096)).all() == [4096]
        reported.result()
    with database.begin() as session:
        assert session.scalars(select(ThroughputProfile.measured)).all() == [2, 2]


def test_no_lock_is_held_while_storage_is_asked(placement, database, monkeypatch):
    """A bucket may take its time, in which others want the task, and a migration its table."""
    asked, size = [], LocalStorage.size

    def looked(storage, sha256):
        with database.begin() as session:
            session.execute(text("LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE"))  # a vacuum gives way; a report's lock would not
        asked.append(sha256)
        return size(storage, sha256)

    placement.report(moved(0, "warmup"), points(0, [1]))
    kept = [placement.checkpoint({0: 1}), placement.adapter(0, 1.5, 1)]
    monkeypatch.setattr(LocalStorage, "size", looked)
    placement.report(*kept)
    named = {kept[0]["jobs"]["0"]["sha256"]} | {file["sha256"] for file in kept[1]["manifest"]["files"]}
    assert set(asked) == named
    placement.seq -= 1
    placement.report(*kept)  # once more, since its answer was lost
    assert len(asked) == len(named), "what was applied is not asked for again"


def test_a_report_of_many_jobs_takes_no_more_statements_than_one_of_few(tenant, new_node, plan):
    counts = []
    for jobs in (2, 50):
        node, task = new_node(), tenant.task(search_space={"learning_rate": [1e-4 * (1 + n) for n in range(jobs)]})
        plan()
        taken = node.take(task["id"])
        taken.report(taken.attached())
        said: list[str] = []
        event.listen(Engine, "before_cursor_execute", count := lambda *given, said=said: said.append(given[2]))
        try:
            taken.report(*(moved(job, "warmup") for job in range(jobs)), *(points(job, [1, 2]) for job in range(jobs)))
        finally:
            event.remove(Engine, "before_cursor_execute", count)
        counts.append(len(said))
    assert counts[1] == counts[0]


def test_a_data_set_without_rows_is_refused(placement):
    """What is shown of a task divides by them."""
    refused = placement.send(placement.attached() | {"train_rows": 0})
    assert refused.status_code == 422
    assert "train_rows" in refused.text


def test_a_repeated_report_is_answered_as_before_and_changes_nothing(database, placement):
    answer = placement.send(moved(0, "warmup"), points(0, [1, 2, 3]))
    before = dump(database)
    again = placement.send(moved(0, "warmup"), points(0, [1, 2, 3]))
    assert (again.status_code, again.json()) == (answer.status_code, answer.json()) == (200, {"seq": 2})
    assert dump(database) == before


def test_a_report_of_an_old_fence_changes_nothing(database, placement):
    placement.report(moved(0, "warmup"), points(0, [1, 2, 3]))
    assert placement.node.lost(placement).status_code == 204
    before = dump(database)
    for body in (
        placement.body(points(0, [4]), seq=3),
        placement.body(moved(0, "warmup"), seq=2),  # also one that was applied in its time
        placement.body(completed(0), seq=3, fence=placement.given.fence + 1),
    ):
        response = placement.call("POST", "reports", body)
        assert (response.status_code, response.json()["code"]) == (409, "fence_stale")
    upload = placement.call("POST", "uploads", {"fence": placement.given.fence, "sha256": "a" * 64, "bytes": 3})
    assert upload.json()["code"] == "fence_stale"
    assert dump(database) == before


def test_a_gap_names_the_report_that_is_missing(database, placement):
    before = dump(database)
    response = placement.send(points(0, [1]), seq=5)
    assert (response.status_code, response.json()["code"], response.json()["expected_seq"]) == (409, "seq_gap", 2)
    assert dump(database) == before


def test_only_its_own_token_speaks_for_a_placement(tenant, placement, plan, new_node):
    other_node, other = new_node(), tenant.task()
    plan()
    stranger = other_node.take(other["id"])
    response = other_node.call(
        "POST", f"placements/{placement.id}/reports", stranger.given.token, placement.body(points(0, [1]))
    )
    assert (response.status_code, response.json()["code"]) == (401, "placement_token_refused")
    assert (
        other_node.call("POST", "placements/nobody/reports", stranger.given.token, placement.body(points(0, [1]))).status_code
        == 401
    )


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([points(0, [1, 2]), points(0, [2, 3])], "events[1] (points): train_loss at step 2 comes after step 2"),
        ([points(0, [3, 2])], "train_loss at step 2 comes after step 3"),
        ([points(7, [1])], "the task has jobs 0 to 1, not 7"),
        ([points(0, [1, 2], [1.0])], "2 steps, but 1 values"),
        ([completed(0)], "may not change from 'pending' to 'completed'"),
        ([moved(0, "warmup"), exited(0, 3), points(0, [4])], "job 0 has ended as exited"),
        ([{"kind": "checkpointed", "jobs": {"0": {"step": 0, "sha256": "b" * 64, "bytes": 1}}}], "never said to have started"),
        (
            [moved(0, "warmup"), {"kind": "checkpointed", "jobs": {"0": {"step": 0, "sha256": "b" * 64, "bytes": 1}}}],
            "is not in storage",
        ),
        (
            [moved(0, "warmup"), {"kind": "checkpointed", "jobs": {"0": {"step": 9, "sha256": "b" * 64, "bytes": 1}}}],
            "checkpoint is of step 9, reported is step 0",
        ),
    ],
)
def test_a_report_that_contradicts_what_is_known_is_refused_whole(database, placement, events, says):
    before = dump(database)
    response = placement.send(*events)
    assert (response.status_code, response.json()["code"]) == (422, "report_refused")
    assert says in response.json()["detail"]
    assert dump(database) == before
    placement.report(moved(0, "warmup"), points(0, [1]))  # the same number is still free


def test_no_step_twice_across_reports(placement):
    placement.report(moved(0, "warmup"), points(0, [1, 2, 3]))
    response = placement.send(points(0, [3, 4]))
    assert response.status_code == 422
    assert "train_loss at step 3 comes after step 3 was kept" in response.json()["detail"]
    placement.report(points(0, [3], series="val_loss"))  # another series has its own steps


def test_small_reports_grow_one_chunk_and_large_ones_are_cut(database, placement, jobs):
    placement.report(moved(0, "warmup"))
    for step in range(1, 11):
        placement.report(points(0, [step], [float(step)]))
    job = jobs()[0]
    (one,) = chunks(database, job.id)
    assert (one.steps, one.values) == (list(range(1, 11)), [float(step) for step in range(1, 11)])
    placement.report(*(points(0, list(range(at, at + 200))) for at in (11, 211, 411)))
    cut = chunks(database, job.id)
    assert [len(chunk.steps) for chunk in cut] == [256, 256, 98]
    assert [step for chunk in cut for step in chunk.steps] == list(range(1, 611))
    assert [(chunk.first_step, chunk.last_step) for chunk in cut] == [(1, 256), (257, 512), (513, 610)]
    assert job.step == 10
    assert jobs()[0].step == 610


def test_a_loss_that_was_not_finite_is_kept_as_nan_and_is_never_the_best(database, placement, jobs):
    placement.report(moved(0, "warmup"), points(0, [1, 2], [3.0, None]), points(0, [1, 2], [None, 2.5], "val_loss"))
    first, second = chunks(database, jobs()[0].id)[0].values
    assert first == 3.0
    assert math.isnan(second)
    assert (jobs()[0].best_step, jobs()[0].best_val_loss) == (2, 2.5)


def test_points_are_kept_to_the_last_bit_however_reports_cut_them(database, placement, jobs):
    draw, kept = random.Random(random.randrange(2**32)), {0: [], 1: []}
    placement.report(moved(0, "warmup"), moved(1, "warmup"))
    for _ in range(12):
        sent = []
        for job in (0, 1, 0):
            first = (kept[job][-1][0] if kept[job] else 0) + draw.randint(1, 5)
            steps = sorted(draw.sample(range(first, first + 400), draw.choice([1, 2, 100, 255, 256])))
            values = [draw.choice([None, 0.0, -0.0, 5e-324, 1.7e308, draw.uniform(-9, 9)]) for _ in steps]
            kept[job] += zip(steps, values, strict=True)
            sent.append(points(job, steps, values))
        placement.report(*sent)
    for job, row in enumerate(jobs()):
        found = chunks(database, row.id)
        assert all(len(chunk.steps) == 256 for chunk in found[:-1])
        assert [step for chunk in found for step in chunk.steps] == [step for step, _ in kept[job]]
        values = [math.nan if value is None else value for _, value in kept[job]]
        assert [repr(value) for chunk in found for value in chunk.values] == [repr(value) for value in values]
        assert [(chunk.first_step, chunk.last_step) for chunk in found] == [(c.steps[0], c.steps[-1]) for c in found]
        assert row.step == kept[job][-1][0]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b'{"fence": 1,\n "seq": }', 400, "line 2, column 9"),
        (b'{"fence": 1, "seq": "\xff"}', 400, "UTF-8"),
        (b'{"fence": 1, "seq": 0, "events": []}', 422, "seq: "),
        (b'{"fence": 1, "seq": 2, "events": [{"kind": "base_evaluated", "val_loss": "low"}]}', 422, "val_loss"),
    ],
)
def test_a_report_that_cannot_be_read_is_refused_with_the_place_of_the_mistake(placement, body, status, says):
    response = placement.node.client.post(
        f"/internal/v1/placements/{placement.id}/reports",
        content=body,
        headers={"Authorization": f"Bearer {placement.given.token}", "Content-Type": "application/json"},
    )
    assert response.status_code == status, response.text
    assert says in response.json()["detail"]
