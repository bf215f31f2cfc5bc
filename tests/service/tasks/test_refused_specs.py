"""Specs that do not fit: each mistake is named by its field, and nothing is left of the task."""

from sqlalchemy import func, select

from service.fleet.models import BaseModel
from service.tasks.models import Task
from tests.service.api import PAIR, chat_rows


def refusals(response) -> dict[str, str]:
    assert response.status_code == 422, response.text
    assert response.json()["code"] == "task_refused"
    return {error["field"]: error["message"] for error in response.json()["errors"]}


def test_everything_that_does_not_fit_is_said_at_once(tenant, new_tenant):
    foreign = new_tenant().file()
    spec = tenant.spec(foreign, base_model="smal", dataset={"file_id": foreign, "validation_file_id": "file_none"})
    said = refusals(tenant.post("/v1/tasks", json=spec))
    assert said["base_model"] == "'smal' is not on the list of base models; did you mean 'small'?"
    assert foreign in said["dataset.file_id"]
    assert "POST /v1/files" in said["dataset.validation_file_id"]


def test_an_unknown_model_shows_which_are_allowed(tenant):
    said = refusals(tenant.post("/v1/tasks", json=tenant.spec(tenant.file(), base_model="other")))
    assert said["base_model"].endswith("allowed are: small")


def test_a_disabled_model_is_not_allowed(tenant, database):
    with database.begin() as session:
        session.add(
            BaseModel(
                name="old", source="/old", revision="b" * 64, architecture="x", parameters=1, max_position=64, enabled=False
            )
        )
    said = refusals(tenant.post("/v1/tasks", json=tenant.spec(tenant.file(), base_model="old")))
    assert said["base_model"].endswith("allowed are: small")


def test_sequences_longer_than_the_model_reads(tenant):
    spec = tenant.spec(tenant.file(), training={"max_seq_len": 4096})
    said = refusals(tenant.post("/v1/tasks", json=spec))
    assert said["training.max_seq_len"] == "is 4096, but small has positions for at most 2048 tokens"


def test_a_validation_file_must_be_of_the_same_format_and_of_other_rows(tenant):
    train, pairs = tenant.file(chat_rows(4)), tenant.file([PAIR])
    again = tenant.file(chat_rows(4))
    for other, words in [(pairs, "is a completion file"), (train, "the very rows"), (again, "the very rows")]:
        spec = tenant.spec(train, dataset={"file_id": train, "validation_file_id": other})
        assert words in refusals(tenant.post("/v1/tasks", json=spec))["dataset.validation_file_id"]


def test_a_file_of_the_other_objective(tenant):
    spec = tenant.spec(tenant.file(), objective={"type": "dpo"})
    assert refusals(tenant.post("/v1/tasks", json=spec))["dataset.file_id"] == (
        "is a chat file, but objective dpo learns from preference rows; set objective.type to sft, or name a file of "
        "preference rows"
    )


def test_batches_and_rows_must_fit(tenant):
    spec = tenant.spec(tenant.file(chat_rows(3)), search_space={"learning_rate": [1e-4], "batch_size": [2, 4]})
    said = refusals(tenant.post("/v1/tasks", json=spec))
    assert said == {"search_space.batch_size[1]": "is 4, but the training file has only 3 rows; take at most 3, or add rows"}
    one = tenant.spec(tenant.file(chat_rows(1)), search_space={"learning_rate": [1e-4], "batch_size": [1]})
    assert "none would be left to validate on" in refusals(tenant.post("/v1/tasks", json=one))["dataset.file_id"]


def test_a_configuration_listed_again_with_its_defaults_written_out(tenant):
    rate, modules = {"learning_rate": 1e-4}, ["q_proj", "v_proj"]
    jobs = [rate, rate | {"alpha": 32}, rate | {"weight_decay": 0.5}, rate | {"weight_decay": 0.1}]
    jobs += [rate | {"target_modules": modules}, rate | {"target_modules": modules[::-1]}]
    listed = {"search_space": {"method": "list", "jobs": jobs}, "training": {"weight_decay": 0.5}}
    said = refusals(tenant.post("/v1/tasks", json=tenant.spec(tenant.file(), **listed)))
    assert {field: words.split(" with ")[0] for field, words in said.items()} == {
        "search_space.jobs[1]": "is jobs[0]",
        "search_space.jobs[2]": "is jobs[0]",
        "search_space.jobs[5]": "is jobs[4]",
    }


def test_a_refused_task_leaves_nothing(tenant, database):
    tenant.post("/v1/tasks", json=tenant.spec("file_none"))
    with database.begin() as session:
        assert session.scalar(select(func.count()).select_from(Task).where(Task.tenant_id == tenant.tenant_id)) == 0
