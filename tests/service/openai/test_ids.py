"""Ids at this face: written as OpenAI's programs expect them, read in both forms, our own everywhere else."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from service.app import create_app
from service.audit.models import AuditEntry
from service.database.engine import new_id
from service.http.openai_ids import OpenAiIds, hint, own_id
from tests.service.api import Caller, chat_rows, jsonl
from tests.service.fleet.scripted import completed, moved, points

JOBS, FILES = "/openai/v1/fine_tuning/jobs", "/openai/v1/files"
KEY = "[0-9a-z]{26}"
WRITTEN, PLAIN = OpenAiIds(True), OpenAiIds(False)


def key_of(id: str) -> str:
    (found,) = re.findall(KEY, id)
    return str(found)


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        ("task_{}", "ftjob-{}"),
        ("file_{}", "file-{}"),
        ("adapter_{}", "ftckpt_{}"),
        ("result-metrics-task_{}", "file-metrics-{}"),
        ("ftevent-task_{}-12", "ftevent-{}-12"),
    ],
)
def test_an_id_has_two_forms(own, theirs):
    key = key_of(new_id("task"))
    own, theirs = own.format(key), theirs.format(key)
    assert (WRITTEN.of(own), PLAIN.of(own)) == (theirs, own)
    assert own_id(theirs) == own_id(own) == own
    assert theirs in hint(theirs)
    assert own in hint(theirs)
    assert hint(own) == ""


def test_what_is_no_id_of_ours_stays_as_it_is():
    key = key_of(new_id("task"))
    for id in (
        "file-x",
        "ftjob-",
        f"ftjob-{key}0",
        f"ftjob-{key[:-1]}u",
        "gpt-4o",
        "ft:small:mine:adapter_0",
        f"a-ftjob-{key}",
    ):
        assert own_id(id) == WRITTEN.of(id) == id
    assert own_id(f"ft:org/small:mine:ftckpt_{key}") == f"ft:org/small:mine:adapter_{key}"
    assert own_id(f"result-metrics-ftjob-{key}") == f"result-metrics-task_{key}"  # as programs compose it of a job's id
    text = f"The file is needed by task_{key}, task_{key}; not by task_x, my_task_{key} or ft:small::adapter_{key}."
    said = f"The file is needed by ftjob-{key}, ftjob-{key}; not by task_x, my_task_{key} or ft:small::adapter_{key}."
    assert (WRITTEN.in_text(text), PLAIN.in_text(text)) == (said, text)


@pytest.fixture
def job(tenant, new_node, plan) -> dict[str, Any]:
    """A job that has succeeded, on a file that came through this face."""
    file = tenant.post(FILES, files={"file": ("x.jsonl", jsonl(*chat_rows(20)))}, data={"purpose": "fine-tune"}).json()
    body = {"model": "small", "training_file": file["id"], "search_space": {"learning_rate": [1e-3]}}
    made = tenant.post(JOBS, json=body | {"validation_file": tenant.file(chat_rows(9))})
    assert made.status_code == 200, made.text
    node = new_node()
    plan()
    taken = node.take(f"task_{key_of(made.json()['id'])}")
    taken.report(taken.attached(), moved(0, "warmup"), points(0, [1]))
    taken.report(taken.adapter(0, 1.25), completed(0, 20, 18, 1.25))
    return dict(tenant.get(f"{JOBS}/{made.json()['id']}").json())


def test_programs_see_openais_ids(tenant, job):
    assert re.fullmatch(f"ftjob-{KEY}", job["id"])
    assert all(re.fullmatch(f"file-{KEY}", job[name]) for name in ("training_file", "validation_file"))
    assert job["result_files"] == [f"file-{kind}-{key_of(job['id'])}" for kind in ("metrics", "jobs", "adapter")]
    events = tenant.get(f"{JOBS}/{job['id']}/events").json()
    assert all(re.fullmatch(f"ftevent-{KEY}-[0-9]+", event["id"]) for event in events["data"])
    (checkpoint,) = tenant.get(f"{JOBS}/{job['id']}/checkpoints").json()["data"]
    assert re.fullmatch(f"ftckpt_{KEY}", checkpoint["id"])
    assert checkpoint["fine_tuning_job_id"] == job["id"]
    assert tenant.get(JOBS).json()["first_id"] == job["id"]
    assert [file["id"] for file in tenant.get(FILES).json()["data"]] == [job["validation_file"], job["training_file"]]
    result = tenant.get(f"{FILES}/{job['result_files'][0]}").json()
    assert (result["id"], result["filename"]) == (job["result_files"][0], f"{job['id']}-metrics.csv")
    content = tenant.get(f"{FILES}/{job['result_files'][0]}/content")
    assert content.headers["content-disposition"].endswith(f"{job['id']}-metrics.csv")


def test_both_forms_are_read_everywhere(tenant, job):
    task_id = own_id(job["id"])
    (checkpoint,) = tenant.get(f"{JOBS}/{job['id']}/checkpoints").json()["data"]
    events = tenant.get(f"{JOBS}/{job['id']}/events").json()["data"]
    for path in (
        f"{JOBS}/{{{job['id']}}}",
        f"{JOBS}/{{{job['id']}}}/events",
        f"{JOBS}/{{{job['id']}}}/checkpoints",
        f"{JOBS}?after={{{job['id']}}}",
        f"{JOBS}/{job['id']}/events?after={{{events[0]['id']}}}",
        f"{JOBS}/{job['id']}/checkpoints?after={{{checkpoint['id']}}}",
        f"{FILES}?after={{{job['training_file']}}}",
        f"{FILES}/{{{job['training_file']}}}",
        f"{FILES}/{{{job['training_file']}}}/content",
        *(f"{FILES}/{{{id}}}/content" for id in job["result_files"]),
        f"/openai/v1/fine_tuning/checkpoints/{{{checkpoint['id']}}}/permissions",
    ):
        before, theirs, after = re.split("[{}]", path)
        answers = [tenant.get(f"{before}{id}{after}") for id in (theirs, own_id(theirs))]
        assert [answer.status_code for answer in answers] == [200, 200], (path, answers[0].text, answers[1].text)
        assert answers[0].content == answers[1].content or "result-adapter" in own_id(theirs), path
    training, validation = job["training_file"], job["validation_file"]
    tuned = job["fine_tuned_model"]
    for said in (
        {"training_file": own_id(training), "validation_file": own_id(validation)},
        {"evaluation": {"metrics": [{"type": "bleu"}], "file_id": validation}},
        {"warm_start": {"adapter_id": checkpoint["id"]}},
        {"model": checkpoint["id"]},
        {"model": tuned},
        {"model": tuned.replace("adapter_", "ftckpt_")},
    ):
        made = tenant.post(JOBS, json={"model": "small", "training_file": training} | said)
        assert made.status_code == 200, (said, made.text)
        spec = tenant.get(f"/v1/tasks/{own_id(made.json()['id'])}").json()["spec"]
        assert spec["dataset"]["file_id"] == own_id(training)
        assert "evaluation" not in said or spec["evaluation"]["file_id"] == own_id(validation)
        assert not {"model", "warm_start"} & said.keys() or spec["warm_start"]["adapter_id"] == own_id(checkpoint["id"])
        assert tenant.post(f"{JOBS}/{made.json()['id']}/cancel").json()["id"] == made.json()["id"]
    deleted = tenant.delete(f"{FILES}/{own_id(validation)}")
    assert deleted.json() == {"id": validation, "object": "file", "deleted": True}
    assert tenant.get(f"/v1/tasks/{task_id}").status_code == 200


def test_elsewhere_they_are_told_for_what_they_are(tenant, job):
    for path, theirs in (("tasks", job["id"]), ("files", job["training_file"])):
        refused = tenant.get(f"/v1/{path}/{theirs}")
        assert refused.status_code == 404
        assert f"{theirs!r} is its id at /openai/v1; here it is {own_id(theirs)!r}" in refused.json()["detail"]
    refused = tenant.post("/v1/tasks", json=tenant.spec(job["training_file"]))
    assert refused.status_code == 422
    assert f"here it is {own_id(job['training_file'])!r}" in refused.text
    assert "its id at" not in tenant.get("/v1/tasks/task_0").text


def test_errors_name_things_as_this_face_does(tenant):
    file = tenant.file()
    task = tenant.post("/v1/tasks", json=tenant.spec(file)).json()["id"]
    in_use = tenant.delete(f"{FILES}/{WRITTEN.of(file)}").json()["error"]["message"]
    assert WRITTEN.of(task) in in_use
    assert task not in in_use
    nowhere = WRITTEN.of(new_id("task"))
    assert nowhere in tenant.get(f"{JOBS}/{nowhere}").json()["error"]["message"]


def test_the_audit_log_has_our_own(tenant, database, job):
    response = tenant.post(f"{JOBS}/{job['id']}/cancel")
    assert response.status_code == 400
    made = tenant.post(JOBS, json={"model": "small", "training_file": job["training_file"]}).json()["id"]
    assert tenant.post(f"{JOBS}/{made}/cancel").status_code == 200
    with database.begin() as session:
        of_tenant = select(AuditEntry.targets).where(AuditEntry.tenant_id == tenant.tenant_id)
        (targets,) = session.scalars(of_tenant.where(AuditEntry.action == "cancel_job"))
    assert targets == [own_id(made)]


@pytest.fixture
def plain(settings, tenant) -> Iterator[Caller]:
    """The same tenant at a process that is to write ids which the version before can read."""
    app = create_app(settings.model_copy(update={"openai_id_prefixes": False}))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Caller(client, tenant.tenant_id, tenant.key)


def test_during_an_upgrade_ids_stay_as_the_version_before_reads_them(plain, job):
    now = plain.get(f"{JOBS}/{job['id']}").json()
    assert now["id"] == own_id(job["id"])
    assert now["training_file"] == own_id(job["training_file"])
    assert now["result_files"] == [own_id(id) for id in job["result_files"]]
    said = [now["id"], plain.get(f"{FILES}/{now['training_file']}").json()["id"], plain.get(JOBS).json()["last_id"]]
    said += [one["id"] for path in ("events", "checkpoints") for one in plain.get(f"{JOBS}/{now['id']}/{path}").json()["data"]]
    said += re.findall(r"'(\S+)'", plain.get(f"{JOBS}/{new_id('task')}").json()["error"]["message"])
    assert [own_id(id) for id in said] == said
