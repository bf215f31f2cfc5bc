"""What pages say, without a browser: states as shapes, specs in their own order, the fields by which losses cannot be
compared."""

from pathlib import Path

import pytest

import service.web
from contract.states import JobStatus, TaskStatus
from service.fleet.node_health.quarantine import TROUBLES
from service.tasks.job_resource import jobs_of_task
from service.tasks.models import Task
from service.tenants.api_keys import Principal
from service.web.views.curve_image import draw
from service.web.views.curve_pack import curve_pack
from service.web.views.icons import icon
from service.web.views.job_rows import importance, job_table
from service.web.views.spec_differences import NamedFile, contents_of, differences, in_order
from service.web.views.spec_form.form_to_spec import spec_of_form
from service.web.views.spec_form.spec_to_form import choices_of, fields_of
from service.web.views.task_rows import task_rows
from tests.service.sample_tasks import adapter, jobs_of
from tests.service.web import sweeps
from tests.service.web.page_samples import FOLDER, GRID

SPEC = {
    "labels": {},
    "search_space": {"rank": [4], "alpha": None, "learning_rate": [1e-4]},
    "dataset": {"file_id": "a"},
    "base_model": "small",
    "name": None,
    "evaluation": {"metrics": [{"json_schema": {"const": None}, "type": "json_schema", "name": None}]},
}


STATES = {*TaskStatus, *JobStatus, *TROUBLES, "ready", "lost", "stopped", "drained", "delivered"}


def test_every_state_has_a_colour_and_a_shape():
    css = (Path(service.web.__file__).parent / "static" / "app.css").read_text()
    assert [state for state in STATES if f".s-{state}" not in css] == []
    unknown = icon("of_another_version").replace("of_another_version", "{}")
    waiting = {state for state in STATES if icon(state) == unknown.format(state)}
    assert waiting == {TaskStatus.QUEUED, JobStatus.PENDING}, "the shape of a state that is not known"


def test_a_spec_is_shown_in_its_own_order_without_nulls():
    shown = in_order(SPEC)
    assert list(shown)[:4] == ["base_model", "dataset", "objective", "search_space"]
    assert "alpha" not in shown["search_space"]
    assert shown["evaluation"]["metrics"] == [{"type": "json_schema", "json_schema": {"const": None}}]
    newer = {**SPEC, "of_a_newer_version": {"x": 1}}
    assert in_order(newer)["of_a_newer_version"] == {"x": 1}
    assert in_order({"unreadable": None}) == {"unreadable": None}


def test_rates_that_differ_are_shown_as_they_were_meant_with_all_digits_on_hover():
    spaces = [
        {"search_space": {"learning_rate": rates}} for rates in ([3e-05], [3.0000000000000004e-05, 0.00031622776601683794])
    ]
    (row,) = differences(spaces, {})
    all_digits = '<span title="3.0000000000000004e-05, 0.00031622776601683794">3e-05, 0.000316</span>'
    assert row == ("search_space.learning_rate", ["3e-05", all_digits])
    assert differences([spaces[0], {"search_space": {"learning_rate": [3.0000000000000004e-05]}}], {}) == []
    near = [{"training": {"weight_decay": decay}} for decay in (0.01, 0.01000001)]
    assert [values for _, values in differences(near, {})] == [["0.01", "0.01000001"]]


def test_metrics_that_differ_are_shown_without_their_nulls():
    asked = {"evaluation": {"metrics": [{"type": "chrf", "name": None}, {"type": "regex", "pattern": "a"}]}}
    (row,) = differences([asked, {}], {})
    assert row == ("evaluation.metrics", ['{"type": "chrf"}, {"type": "regex", "pattern": "a"}', "\u2013"])


def test_files_of_the_same_bytes_are_the_same():
    files = {id: NamedFile(f"{id}.jsonl", sha256) for id, sha256 in (("a", "1" * 64), ("b", "1" * 64), ("c", "2" * 64))}
    first, same, other = (SPEC | {"dataset": {"file_id": id, "validation_fraction": 0.2}} for id in "abc")
    assert differences([first, same], files) == []
    (row,) = differences([first, other], files)
    assert row[1][1] == "c.jsonl (c, sha256 22222222)"
    assert contents_of(files) == {"a": "1" * 64, "b": "1" * 64, "c": "2" * 64}


def test_a_form_like_a_task_keeps_metrics_with_settings():
    asked = {"metrics": [{"type": "regex", "pattern": "a+", "name": None}, {"type": "rouge_l", "name": None}], "max_prompts": 9}
    like = {"dataset": {"file_id": "file_1"}, "evaluation": asked}
    fields, chosen = fields_of(like), choices_of(like)
    spec, mistakes = spec_of_form(fields, *chosen)
    assert not mistakes
    assert spec["evaluation"] == {"metrics": [{"type": "regex", "pattern": "a+"}, {"type": "rouge_l"}], "max_prompts": 9}


def leads(database, tenant, task_id):
    """The best job's index in a task's table, the first row's, the losses in the lists of jobs and of tasks, whether the image
    shows a best job, and what mattered."""
    reader = Principal(tenant.tenant_id, "key", frozenset())
    with database.begin() as session:
        task, jobs = session.get_one(Task, task_id), jobs_of_task(session, reader, task_id)
        table = job_table(jobs, "best", task.winner_job_id)
        (row,) = task_rows(session, reader, [task])
        image = draw(jobs, curve_pack(session, reader, task_id, len(jobs), [], 0), task.winner_job_id)
    best = table.best.job if table.best is not None else None
    assert [row.facts["leads"] for row in table.rows].count(True) == (best is not None) == ('stroke-width="2.5"' in image)
    found = (best.index, best.best_val_loss) if best is not None else (None, None)
    assert found[1] == row.best
    return found[0], table.rows[0].job.index, bool(importance(table))


@pytest.mark.parametrize(("betas", "best"), [(("auto", "slow"), None), (({"of": 1}, None), None), (("auto", "auto"), 0)])
def test_betas_that_cannot_be_read_are_compared_as_they_are_stored(tenant, database, betas, best):
    task_id = tenant.task(search_space=GRID)["id"]
    sweeps.begin(database, task_id)
    with database.begin() as session:
        for job in jobs_of(session, task_id):
            job.config = job.config | {"beta": betas[job.index % 2]}
        task = session.get_one(Task, task_id)
        task.spec = task.spec | {"objective": {"type": "dpo"}}
    assert leads(database, tenant, task_id) == (best, 0, best is not None)


def test_losses_of_several_betas_name_no_best_job_before_there_is_a_winner(tenant, database, storage):
    task_id = tenant.task(search_space=GRID)["id"]
    sweeps.begin(database, task_id)
    assert leads(database, tenant, task_id) == (0, 0, True)
    with database.begin() as session:
        for job in jobs_of(session, task_id):
            job.config = job.config | {"beta": 0.1 + 0.2 * (job.index % 2)}
        task = session.get_one(Task, task_id)
        task.spec = task.spec | {"objective": {"type": "dpo"}}
    assert leads(database, tenant, task_id) == (None, 0, False)
    with database.begin() as session:
        third = jobs_of(session, task_id)[3]
        adapter(session, storage, third, FOLDER)
        session.get_one(Task, task_id).winner_job_id = third.id
    assert leads(database, tenant, task_id) == (3, 3, False)
