"""A mirror whose stored row is damaged is given up with words for its owner; the mirrors of other tasks go on."""

import pytest
from sqlalchemy import text

from service.mirrors.models import MirroredRun, TaskMirror
from tests.service.fleet.scripted import points
from tests.service.mirrors.conftest import finished, job_ids, mirror_of

BAD_STEPS = [3, ["x"], {"train_loss": "far"}, {"train_loss": 10**12}]
DOUBTS = [3, {}, {"at": "now", "through": {}}, {"at": 5, "through": {"train_loss": None}}]
SUMMARIES = [{"summary": said} for said in (3, "x", "[]", '{"best_val_loss": "low"}')]
OF_RUN = [*(("sent", value) for value in BAD_STEPS), *(("in_doubt", value) for value in DOUBTS)]
OF_RUN += [("position", value) for value in (3, ["x"], {"lines": "many"}, {"step": {}}, {"heard": "now"}, *SUMMARIES)]
OF_MIRROR = [("tags", 3), ("tags", {"team": {}}), ("options", ["x"]), ("options", {"name": 3}), ("options", {"tags": [3]})]


def visited(tenant, courier, due, damaged, sound, tracker, column):
    """Both are due again: the damaged one alone is given up."""
    for taken in (damaged, sound):
        taken.report(points(0, [3], [0.5], "val_loss"), taken.checkpoint({0: 3}))
    due()
    courier.work_off_due()
    assert tracker.run_of(job_ids(sound)[0]).curve("val_loss") == [(3, 0.5)]
    told = mirror_of(tenant, sound)
    assert (told["state"], told["error"]) == ("active", None)
    told = mirror_of(tenant, damaged)
    assert told["state"] == "failed"
    assert f".{column}) cannot be read" in told["error"]
    assert "change of the tracking server" in told["error"], "the way out is not cut off"


@pytest.mark.parametrize(("column", "value"), OF_MIRROR)
def test_a_mirror(tenant, placed, tracker, courier, due, damage, column, value):
    damaged, sound = placed(experiment="a"), placed(experiment="b")
    for taken in (damaged, sound):
        taken.report(points(0, [1, 2]), taken.checkpoint({0: 2}))
    damage(TaskMirror, column, value, TaskMirror.task_id == damaged.given.task_id)
    visited(tenant, courier, due, damaged, sound, tracker, column)


@pytest.mark.parametrize("tracker", ["wandb"], indirect=True)  # which reads a run's position, too
@pytest.mark.parametrize(("column", "value"), OF_RUN)
def test_a_run(tenant, placed, tracker, courier, due, damage, column, value):
    damaged, sound = placed(experiment="a"), placed(experiment="b")
    for taken in (damaged, sound):
        taken.report(points(0, [1, 2]), taken.checkpoint({0: 2}))
    courier.work_off_due()
    damage(MirroredRun, column, value, MirroredRun.job_id == job_ids(damaged)[0])
    visited(tenant, courier, due, damaged, sound, tracker, column)


def test_a_run_that_has_ended_is_read_no_more(tenant, placed, mlflow, courier, due, damage):
    taken = placed()
    taken.report(points(0, [1, 2]))
    finished(taken)
    courier.work_off_due()
    damage(MirroredRun, "sent", 3, MirroredRun.job_id == job_ids(taken)[0])
    damage(TaskMirror, "seen_version", 0, TaskMirror.task_id == taken.given.task_id)
    damage(TaskMirror, "state", "active", TaskMirror.task_id == taken.given.task_id)
    due()
    assert courier.work_off_due() == 1
    assert mirror_of(tenant, taken)["state"] == "finished"


def test_a_beat_keeps_what_a_newer_version_notes_of_a_run(placed, wandb, courier, due, damage, database, tenant):
    taken = placed(server=wandb)
    taken.report(points(0, [1, 2]), taken.checkpoint({0: 2}))
    courier.work_off_due()
    own = MirroredRun.job_id == job_ids(taken)[0]
    with database.begin() as session:
        noted = session.scalar(text("SELECT position FROM mirrored_runs WHERE job_id = :id"), {"id": job_ids(taken)[0]})
    newer = noted | {"heard": 0, "gap": {"of": 3}}
    damage(MirroredRun, "position", newer, own)
    damage(TaskMirror, "seen_version", 0, TaskMirror.task_id == taken.given.task_id)
    due()
    assert courier.work_off_due() == 1
    with database.begin() as session:
        beaten = session.scalar(text("SELECT position FROM mirrored_runs WHERE job_id = :id"), {"id": job_ids(taken)[0]})
    assert beaten.pop("heard") > 0
    assert beaten == {name: value for name, value in newer.items() if name != "heard"}
    assert mirror_of(tenant, taken)["state"] == "active"
