"""What Weights & Biases has of a task: groups, runs, config, history, summaries, in the form of its SDK's calls."""

import base64
import json
import math
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from service.mirrors.models import MirroredRun
from service.mirrors.tracker import MOST_POINTS
from service.mirrors.wandb_tracker import WandbTracker
from tests.service.fleet.scripted import completed, exited, points
from tests.service.mirrors.conftest import finished, job_ids, mirror_of
from tests.service.mirrors.wandb_server import KEY

SDK = json.loads((Path(__file__).parent / "wandb_sdk_calls.json").read_text())  # of a run that it logged, 0.31.0


def form(said):
    """The types of a JSON value's members: of a list, of its first."""
    if isinstance(said, dict):
        return {name: form(value) for name, value in said.items()}
    return [form(one) for one in said[:1]] if isinstance(said, list) else type(said)


def test_a_task_is_a_group_with_a_run_for_each_job(tenant, placed, wandb, courier, due):
    taken = placed(server=wandb, entity="team", tags=["speech"], name="voice")
    taken.report(points(0, [1, 2]), points(0, [2], [0.5], "val_loss"), points(1, [1], [math.nan]))
    taken.report(taken.checkpoint({0: 2, 1: 1}))
    assert courier.work_off_due() == 1
    assert set(wandb.runs) == {("team", "voices", job) for job in job_ids(taken)}
    first, second = (wandb.run_of(job) for job in job_ids(taken))
    assert [(line["_step"], line["step"]) for line in first.history] == [(1, 1), (2, 2)], "one line for a step's points"
    assert (first.curve("train_loss"), first.curve("val_loss"), first.status) == ([(1, 1.99), (2, 1.98)], [(2, 0.5)], "RUNNING")
    ((step, value),) = second.curve("train_loss")
    assert (step, math.isnan(value)) == (1, True)
    config = taken.given.jobs[0].config
    assert (first.params["learning_rate"], first.params["target_modules"]) == (
        config.learning_rate,
        list(config.target_modules),
    )
    assert (first.params["base_model"], first.params["job"], second.params["job"]) == ("small", 0, 1)
    for run, name in ((first, "voice job 0"), (second, "voice job 1")):
        said = run.said
        assert (said["groupName"], said["displayName"], said["tags"]) == (taken.given.task_id, name, ["speech"])
    assert (first.summary["train_loss"], first.summary["best_val_loss"], first.summary["step"]) == (1.98, 0.5, 2)
    login = base64.b64encode(f"api:{KEY}".encode()).decode()
    assert {one["authorization"] for one in wandb.headers} == {f"Basic {login}"}
    seen = mirror_of(tenant, taken)
    assert (seen["type"], seen["state"], seen["error"], seen["points"]) == ("wandb", "active", None, 4)
    assert (seen["experiment"], seen["entity"], seen["run_id"]) == ("voices", "team", taken.given.task_id)

    taken.report(points(0, [18], [1.25], "val_loss"), exited(1, 1))
    taken.report(taken.adapter(0, 1.25), completed(0, 20, 18, 1.25))
    due()
    assert courier.work_off_due() == 1
    assert first.curve("val_loss") == [(2, 0.5), (18, 1.25)]
    assert [run.status for run in (first, second)] == ["FINISHED"] * 2
    assert (first.summary["status"], first.summary["best_val_loss"], first.summary["best_step"]) == ("completed", 1.25, 18)
    assert first.summary["train_loss"] == 1.98, "what was sent before is kept"
    assert (second.summary["status"], second.summary["exit_reason"]) == ("exited", "underperforming")
    assert (first.said["tags"], second.said["tags"]) == (["speech", "winner"], ["speech"])
    assert first.said["groupName"] == taken.given.task_id, "a change of tags leaves the rest"
    assert mirror_of(tenant, taken)["state"] == "finished"
    before = len(wandb.calls)
    due()
    assert (courier.work_off_due(), len(wandb.calls)) == (0, before)


def test_calls_have_the_form_of_the_sdks(placed, wandb, courier, due):
    bodies = []
    wandb.fault = lambda call, asked: bodies.append((call, asked))
    taken = placed(server=wandb, entity="team", tags=["a"], name="n")
    taken.report(points(0, [1, 2]), points(0, [2], [0.5], "val_loss"), taken.checkpoint({0: 2}))
    finished(taken)
    courier.work_off_due()
    made, *_ = (asked["variables"] for call, asked in bodies if call == "upsertBucket")
    theirs, *_, defined = (call["variables"] for call in SDK["upsertBucket"])
    assert {name: type(value) for name, value in made.items() if name != "notes"}.items() <= {
        name: type(value) for name, value in theirs.items()
    }.items()
    ours, sdks = json.loads(made["config"]), json.loads(defined["config"])
    assert form(ours["learning_rate"]) == form(sdks["learning_rate"])
    assert form(ours["target_modules"]) == form(sdks["target_modules"])
    metrics = [next(one for one in config["_wandb"]["value"]["m"] if one["1"] == "val_loss") for config in (ours, sdks)]
    assert metrics[0] == metrics[1]
    sent = next(asked for call, asked in bodies if call == "file_stream" and "files" in asked)
    recorded = next(call["body"] for call in SDK["file_stream"] if "wandb-history.jsonl" in call["body"].get("files", {}))
    assert form(sent["files"]) == form(recorded["files"])
    lines = [json.loads(one["files"]["wandb-history.jsonl"]["content"][0]) for one in (sent, recorded)]
    assert form(lines[0]) == form(lines[1])
    end = next(asked for call, asked in bodies if "complete" in asked)
    assert {name: type(end[name]) for name in ("complete", "exitcode")} == {"complete": bool, "exitcode": int}
    assert {name: type(SDK["file_stream"][-1]["body"][name]) for name in ("complete", "exitcode")} == {
        "complete": bool,
        "exitcode": int,
    }


def test_where_no_entity_is_named_runs_lie_at_the_keys_own(tenant, placed, wandb, courier, due):
    taken = placed(server=wandb)
    assert mirror_of(tenant, taken)["entity"] is None
    courier.work_off_due()
    assert {entity for entity, *_ in wandb.runs} == {"ada"}
    assert mirror_of(tenant, taken)["entity"] == "ada"
    wandb.entities.reverse()
    finished(taken)
    due()
    courier.work_off_due()
    assert {entity for entity, *_ in wandb.runs} == {"ada"}, "though the key has another default since"
    assert wandb.calls.count("viewer") == 1


def test_a_point_that_comes_late_takes_the_next_line(placed, wandb, courier, due):
    taken = placed(server=wandb)
    taken.report(points(0, [1, 2]), taken.checkpoint({0: 2}))
    courier.work_off_due()
    taken.report(points(0, [2], [0.5], "val_loss"), points(0, [3, 8]), taken.checkpoint({0: 8}))
    due()
    courier.work_off_due()
    run = wandb.run_of(job_ids(taken)[0])
    assert [(line["_step"], line["step"]) for line in run.history] == [(1, 1), (2, 2), (3, 2), (4, 3), (8, 8)]
    assert run.curve("val_loss") == [(2, 0.5)]


@pytest.mark.parametrize(("count", "chunk"), [(3072, 256), (200, 10)])
def test_long_curves_go_in_bounded_calls(tenant, placed, wandb, courier, count, chunk):
    """Three series of more chunks than are read for a batch, at the same steps: a step's points are in one line."""
    taken, steps = placed(server=wandb), range(1, 1 + count)
    taken.report(points(0, [1], [0.5], "val_loss"))  # so that 900 points end within a step
    for at in range(0, len(steps), chunk):
        part = list(steps[at : at + chunk])
        taken.report(*(points(0, part, series=series) for series in ("train_loss", "train_accuracy", "train_margin")))
    taken.report(taken.checkpoint({0: steps[-1]}))
    most = []
    wandb.fault = lambda call, asked: most.append(
        sum(len(json.loads(line)) for line in asked.get("files", {}).get("wandb-history.jsonl", {}).get("content", ()))
    )
    courier.work_off_due()
    run = wandb.run_of(job_ids(taken)[0])
    assert [line["_step"] for line in run.history] == list(steps)
    assert all({"train_loss", "train_accuracy", "train_margin"} <= set(line) for line in run.history)
    assert mirror_of(tenant, taken)["points"] == 3 * len(steps) + 1
    assert max(most) <= MOST_POINTS * 5, "each line has at most as many values besides"


def test_a_run_of_which_nothing_was_heard_is_kept_alive(tenant, placed, wandb, courier, due, database):
    taken = placed(server=wandb)
    courier.work_off_due()
    first = wandb.run_of(job_ids(taken)[0])
    assert first.beats == 1
    taken.report(points(0, [1]))  # that no checkpoint covers
    due()
    courier.work_off_due()
    assert first.beats == 1, "it was heard of just now"
    with database.begin() as session:
        for run in session.query(MirroredRun):
            assert WandbTracker.beat is not None
            heard = run.position.heard - WandbTracker.beat / timedelta(milliseconds=1)
            session.execute(update(MirroredRun).where(MirroredRun.job_id == run.job_id).values(position={"heard": heard}))
    taken.report(points(0, [2]))
    due()
    courier.work_off_due()
    assert (first.beats, first.lines) == (2, [])


def test_the_run_of_a_tasks_only_job_has_the_tasks_name(placed, wandb, courier):
    space = {"learning_rate": [1e-4], "rank": [8], "batch_size": [2]}
    placed(server=wandb, begun=1, spec={"name": "quiet", "search_space": space})
    courier.work_off_due()
    ((_, run),) = wandb.runs.items()
    assert (run.said["displayName"], run.said["notes"]) == ("quiet", "quiet")
