"""Tuned models: listed in pages, gone on from, deleted."""

import pytest
from sqlalchemy import select, update

from contract.job_config import MAX_ALPHA
from service.fleet.models import BaseModel
from service.http.openai_ids import own_id
from tests.service.adapters.adapter_uploads import CONFIG, safetensors, tensors, upload
from tests.service.fleet.scripted import completed, moved, points


@pytest.fixture
def tuned_model(tenant, new_node, plan):
    """Trains a job of one configuration; returns its model's name."""
    node = new_node()

    def train(**shape: object) -> str:
        body = {"model": "small", "training_file": tenant.file(), "search_space": {"learning_rate": [1e-3], **shape}}
        job = tenant.post("/openai/v1/fine_tuning/jobs", json=body).json()["id"]
        plan()
        taken = node.take(own_id(job))
        taken.report(taken.attached(), moved(0, "warmup"), points(0, [1]))
        taken.report(taken.adapter(0, 1.25), completed(0, 20, 18, 1.25))
        return str(tenant.get(f"/openai/v1/fine_tuning/jobs/{job}").json()["fine_tuned_model"])

    return train


def test_the_list_of_models_has_pages(tenant, tuned_model):
    """Bases come on the first page, besides its models."""
    first, second = tuned_model(), tuned_model()
    newest = tenant.get("/openai/v1/models", params={"limit": 1}).json()
    bases = [model["id"] for model in newest["data"] if model["owned_by"] == "motet"]
    assert ([model["id"] for model in newest["data"]], newest["has_more"]) == ([*bases, second], True)
    assert "small" in bases
    rest = tenant.get("/openai/v1/models", params={"limit": 1, "after": newest["last_id"]}).json()
    assert ([model["id"] for model in rest["data"]], rest["has_more"]) == ([first], False)


@pytest.mark.parametrize("whole", [False, True])
def test_a_page_goes_on_after_a_model_that_was_deleted(tenant, new_tenant, tuned_model, whole):
    """As by a client that deletes what it lists, alone or with its task."""
    first, second = tuned_model(), tuned_model()
    made = tenant.get(f"/v1/adapters/{second.rpartition(':')[2]}").json()
    gone = tenant.delete(f"/v1/tasks/{made['task_id']}" if whole else f"/openai/v1/models/{second}")
    assert gone.is_success, gone.text
    rest = tenant.get("/openai/v1/models", params={"after": second})
    assert [model["id"] for model in rest.json()["data"]] == [first], rest.text
    refused = new_tenant().get("/openai/v1/models", params={"after": second})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "after"), refused.text


def test_uploaded_adapters_have_pages_before_the_winners(tenant, tuned_model, toy):
    made = [upload(tenant, safetensors(tensors()), name="long " * 20).json() for _ in range(3)]
    winners = [tuned_model() for _ in range(2)]
    wanted = [f"ft:toy:{'long ' * 20}:{one['id']}" for one in reversed(made)] + winners[::-1]
    seen, query = [], {"limit": 2}
    for more in (True, True, False):
        page = tenant.get("/openai/v1/models", params=query).json()
        assert page["has_more"] is more
        seen += [model["id"] for model in page["data"] if model["owned_by"] != "motet"]
        query["after"] = page["last_id"]
    assert seen == wanted
    assert len(tenant.get("/openai/v1/models", params={"limit": 5}).json()["data"]) == 5 + len(["small", "toy"])


def test_a_job_goes_on_from_a_tuned_model(tenant, new_tenant, tuned_model, new_node, plan):
    name = tuned_model(rank=[8], target_modules=[["q_proj", "v_proj"]])
    ask, jobs = {"model": name, "training_file": tenant.file()}, "/openai/v1/fine_tuning/jobs"
    made = [tenant.post(jobs, json=ask | {"model": model}).json() for model in (name, name.rpartition(":")[2])]
    assert [job["model"] for job in made] == [name, name], made
    spec = tenant.get(f"/v1/tasks/{own_id(made[0]['id'])}").json()["spec"]
    assert (spec["base_model"], spec["warm_start"]) == ("small", {"adapter_id": name.rpartition(":")[2]})
    shape = {key: spec["search_space"][key] for key in ("rank", "alpha", "target_modules", "learning_rate")}
    modules = [["q_proj", "v_proj"]]
    assert shape == {"rank": [8], "alpha": [16], "target_modules": modules, "learning_rate": [5e-5, 2e-4, 1e-3]}
    listed = {"method": "list", "jobs": [{"learning_rate": 1e-4}, {"learning_rate": 2e-4, "alpha": 4}]}
    made = tenant.post(jobs, json=ask | {"search_space": listed}).json()
    found = tenant.get(f"/v1/tasks/{own_id(made['id'])}").json()["spec"]["search_space"]["jobs"]
    assert [(job["rank"], job["alpha"], job["target_modules"]) for job in found] == [(8, 16, modules[0]), (8, 4, modules[0])]

    space = {"learning_rate": [1e-3], "rank": [8, 16], "target_modules": [["q_proj"]]}
    for said, param, words in (
        ({"search_space": space | {"target_modules": modules}}, "search_space.rank[1]", "has rank 8; set it to 8"),
        ({"search_space": space | {"rank": [8]}}, "search_space.target_modules[0]", "leaves out v_proj"),
        ({"warm_start": {"adapter_id": "adapter_1"}}, "warm_start", "leave warm_start out"),
        ({"model": name + "0"}, "model", "There is no model"),
        ({"model": "adapter_0"}, "model", "There is no model"),
    ):
        refused = tenant.post(jobs, json=ask | said)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, param), error
        assert words in error["message"]
    other = new_tenant()
    told = [
        other.post(jobs, json={"model": model, "training_file": other.file()}).json()["error"]["message"].replace(model, "")
        for model in (name, name + "0")
    ]
    assert told[0] == told[1], "another tenant's model is as an unknown one"


def test_an_alpha_that_no_job_can_have_is_refused_in_the_requests_terms(tenant, toy):
    config = CONFIG | {"lora_alpha": MAX_ALPHA * 2}
    model = upload(tenant, safetensors(tensors()), config=config).json()["id"]
    ask, jobs = {"model": model, "training_file": tenant.file(), "training": {"max_seq_len": 64}}, "/openai/v1/fine_tuning/jobs"
    listed = {"method": "list", "jobs": [{"learning_rate": 1e-4, "alpha": 4}, {"learning_rate": 2e-4}]}
    for said in ({}, {"search_space": {"learning_rate": [1e-3]}}, {"search_space": listed}):
        refused = tenant.post(jobs, json=ask | said)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"], error["code"]) == (400, "model", "alpha_too_large"), error
        assert "search_space.alpha, at most 65536" in error["message"]
    for space in ({"alpha": [16]}, {"alpha_ratio": [2]}):
        made = tenant.post(jobs, json=ask | {"search_space": {"learning_rate": [1e-3]} | space})
        assert made.status_code == 200, made.text


def test_a_tuned_model_of_a_base_that_changed_is_refused_as_the_model(tenant, tuned_model, database):
    name = tuned_model()
    with database.begin() as session:
        revision = session.scalar(select(BaseModel.revision).where(BaseModel.name == "small"))
        session.execute(update(BaseModel).where(BaseModel.name == "small").values(revision="c" * 64))
    try:
        refused = tenant.post("/openai/v1/fine_tuning/jobs", json={"model": name, "training_file": tenant.file()})
    finally:
        with database.begin() as session:
            session.execute(update(BaseModel).where(BaseModel.name == "small").values(revision=revision))
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "model"), error
    assert "another revision" in error["message"]


def test_a_base_that_is_switched_off_is_no_model(tenant, database):
    rest = {"source": "/nowhere", "revision": "b" * 64, "architecture": "LlamaForCausalLM", "parameters": 1, "max_position": 99}
    with database.begin() as session:
        session.add(BaseModel(name="off", enabled=False, **rest))
    assert tenant.get("/openai/v1/models/off").status_code == 404
    assert "off" not in {model["id"] for model in tenant.get("/openai/v1/models").json()["data"]}
    asked = tenant.post("/openai/v1/chat/completions", json={"model": "off", "messages": [{"role": "user", "content": "?"}]})
    assert asked.status_code == 404, asked.text


def test_a_job_goes_on_in_the_precision_that_its_tuned_model_was_trained_in(tenant, training):
    placement = training(precision="nf4")
    placement.report(points(0, [1]), points(1, [1]), placement.adapter(0, 1.25))
    placement.report(completed(0, 20, 18, 1.25), completed(1, 20, None, None))
    (adapter,) = tenant.get("/v1/adapters", params={"task_id": placement.given.task_id}).json()["data"]
    made = tenant.post("/openai/v1/fine_tuning/jobs", json={"model": adapter["id"], "training_file": tenant.file()})
    assert made.status_code == 200, made.text
    assert tenant.get(f"/v1/tasks/{own_id(made.json()['id'])}").json()["spec"]["precision"] == "nf4"


def test_a_tuned_model_is_deleted_by_its_name_and_a_base_is_not(tenant, new_tenant, tuned_model):
    name = tuned_model()
    assert new_tenant().delete(f"/openai/v1/models/{name}").status_code == 404
    assert name in {model["id"] for model in tenant.get("/openai/v1/models").json()["data"]}
    assert tenant.delete(f"/openai/v1/models/{name}").json() == {"id": name, "object": "model", "deleted": True}
    assert name not in {model["id"] for model in tenant.get("/openai/v1/models").json()["data"]}
    assert tenant.get(f"/openai/v1/models/{name}").status_code == 404
    assert tenant.delete(f"/openai/v1/models/{name}").status_code == 404
    refused = tenant.delete("/openai/v1/models/small")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "not_deletable")


def test_a_job_of_preferences_and_a_list_say_what_they_are(tenant):
    pair = b'{"prompt": "2 + 3?", "chosen": "5", "rejected": "6"}\n'
    pairs = tenant.post("/v1/files", files={"file": ("pairs.jsonl", pair * 20)}).json()["id"]
    listed = {"method": "list", "jobs": [{"learning_rate": 1e-4}, {"learning_rate": 2e-4, "seed": 3}]}
    asked = ({"method": {"type": "dpo"}}, {"method": {"type": "dpo"}, "search_space": listed})
    said = [
        tenant.post("/openai/v1/fine_tuning/jobs", json={"model": "small", "training_file": pairs, **more}).json()
        for more in asked
    ]
    assert all("method" in job for job in said), said
    assert [job["method"]["dpo"]["hyperparameters"]["beta"] for job in said] == [0.1, 0.1]
    assert [job["hyperparameters"]["batch_size"] for job in said] == [4, 4]
    assert {job["hyperparameters"]["learning_rate_multiplier"] for job in said} == {"auto"}
