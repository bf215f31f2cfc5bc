"""Validation rows that are also trained on: counted by the worker, told wherever the losses are."""

import pytest

from service.http.openai_ids import own_id
from tests.service.api import chat_rows
from tests.service.fleet.scripted import completed, moved
from tests.service.web.test_forms import signed, words  # noqa: F401  (a fixture)

SAID = "2 of 2 validation rows are also trained on, so validation losses say nothing of unseen rows; take them out of the"


@pytest.fixture
def job(tenant) -> str:
    body = {"model": "small", "training_file": tenant.file(), "validation_file": tenant.file(chat_rows(9)[5:])}
    body |= {"search_space": {"method": "list", "jobs": [{"learning_rate": 1e-4}]}}
    made = tenant.post("/openai/v1/fine_tuning/jobs", json=body)
    assert made.status_code == 200, made.text
    return made.json()["id"]


def base_told(tenant, job: str) -> tuple[str, str]:
    events = tenant.get(f"/openai/v1/fine_tuning/jobs/{job}/events").json()["data"]
    (told,) = (event for event in events if "The base model alone" in event["message"])
    return told["level"], told["message"]


def test_rows_that_validate_and_train_are_told_with_the_losses(tenant, new_node, plan, job, signed):  # noqa: F811
    node, task = new_node(), own_id(job)
    plan()
    taken = node.take(task)
    taken.report(taken.attached() | {"overlap_rows": 2}, {"kind": "base_evaluated", "val_loss": 3.0}, moved(0, "warmup"))
    assert tenant.get(f"/v1/tasks/{task}").json()["rows"]["overlap"] == 2
    assert base_told(tenant, job) == ("warn", f"The base model alone has a validation loss of 3.0000; {SAID} training file")
    page = words(signed.get(f"/tasks/{task}"))
    assert f"{SAID} training file." in page
    assert f"the base alone has a validation loss of 3.0000; {SAID}" in page

    adapter = taken.adapter(0, 1.25)
    taken.report(adapter, completed(0))
    kept = tenant.get(f"/v1/tasks/{task}").json()["winner"]["adapter_id"]
    assert f"- validation rows: {SAID} training file\n" in tenant.get(f"/v1/adapters/{kept}/files/README.md").text


@pytest.mark.parametrize("counted", [None, 0])
def test_a_worker_of_before_and_rows_apart_tell_nothing(tenant, new_node, plan, job, signed, counted):  # noqa: F811
    node, task = new_node(), own_id(job)
    plan()
    taken = node.take(task)
    more = {} if counted is None else {"overlap_rows": counted}
    taken.report(taken.attached() | more, {"kind": "base_evaluated", "val_loss": 3.0}, moved(0, "warmup"))
    assert tenant.get(f"/v1/tasks/{task}").json()["rows"]["overlap"] == counted
    assert base_told(tenant, job) == ("info", "The base model alone has a validation loss of 3.0000")
    assert "also trained on" not in words(signed.get(f"/tasks/{task}"))


def test_a_worker_of_before_leaves_what_was_counted(tenant, new_node, plan, job):
    node, task = new_node(), own_id(job)
    plan()
    taken = node.take(task)
    taken.report(taken.attached() | {"overlap_rows": 2})
    taken.report(taken.attached())
    assert tenant.get(f"/v1/tasks/{task}").json()["rows"]["overlap"] == 2
