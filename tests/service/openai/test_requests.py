"""A fine-tuning job's request as a task's spec, and the face's own errors and lists."""

import pytest

from contract.job_config import MAX_ALPHA
from contract.messages.peft_settings import PeftSettings
from service.http.openai_ids import own_id
from service.openai.jobs.job_requests import JobRequest
from service.openai.models.tuned_start import TunedStart
from tests.service.api import chat_rows
from tests.service.fleet.scripted import moved, points

FILE = {"model": "small", "training_file": "file_1"}
SECONDS = "expires_after[seconds]"


def space(**said) -> dict:
    return JobRequest.model_validate(FILE | said).spec().search_space.model_dump(exclude_defaults=True)


def supervised(**hyperparameters) -> dict:
    return {"method": {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}}


def test_what_is_auto_is_searched():
    assert space() == {"learning_rate": [5e-5, 2e-4, 1e-3]}
    assert space(**supervised(learning_rate_multiplier="auto", batch_size="auto")) == space()


@pytest.mark.parametrize("how", [lambda h: {"hyperparameters": h}, lambda h: supervised(**h)])
def test_what_is_said_is_not(how):
    said = how({"learning_rate_multiplier": 2, "batch_size": 8, "n_epochs": 5})
    assert space(**said, seed=7) == {"learning_rate": [2e-4], "batch_size": [8], "seed": [7]}
    assert JobRequest.model_validate(FILE | said).spec().training.epochs == 5


def test_training_may_stand_beside_the_number_of_epochs():
    said = supervised(n_epochs=2) | {"hyperparameters": {"n_epochs": 2}, "training": {"max_seq_len": 128}}
    training = JobRequest.model_validate(FILE | said).spec().training
    assert (training.epochs, training.max_seq_len) == (2, 128)


def test_a_file_of_another_objective_is_told_in_openais_terms(tenant):
    file = tenant.file(chat_rows(8))
    asked = {"model": "small", "training_file": file, "method": {"type": "dpo"}}
    error = tenant.post("/openai/v1/fine_tuning/jobs", json=asked).json()["error"]
    assert error["param"] == "training_file"
    assert "set method.type to supervised, or name a file" in error["message"]


@pytest.mark.parametrize("path", ["/v1/fine_tuning/jobs", "/v1/chat/completions", "/chat/completions", "/v1/completions"])
def test_an_sdk_with_another_base_url_is_told_the_right_one(tenant, path):
    response = tenant.post(path, json={})
    assert response.status_code == 404
    said = f"There is no {path} here: OpenAI's API is below /openai/v1, so that is how base_url ends."
    assert response.json()["error"]["message"] == said


def test_preferences_have_a_beta_of_their_own():
    asked = {"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2, "n_epochs": 2}}}}
    spec = JobRequest.model_validate(FILE | asked).spec()
    assert (spec.objective.type, spec.search_space.beta, spec.training.epochs) == ("dpo", [0.2], 2)
    assert JobRequest.model_validate(FILE | {"method": {"type": "dpo"}}).spec().search_space.beta is None


def test_a_search_space_is_taken_as_it_is():
    wanted = {"learning_rate": [1e-4, 3e-4], "rank": [8, 64]}
    assert space(search_space=wanted) == wanted


@pytest.mark.parametrize(
    "space",
    [
        {"learning_rate": [1e-4], "alpha": None, "alpha_ratio": None},
        {"method": "list", "jobs": [{"learning_rate": 1e-4, "alpha": None}]},
    ],
)
def test_a_null_leaves_a_tuned_models_scale_as_it_is(space):
    start = TunedStart("adapter_1", "small", "bf16", PeftSettings(rank=8, alpha=64, target_modules=["q_proj"]))
    (job,) = JobRequest.model_validate(FILE | {"search_space": space}).spec(start).jobs()
    assert (job.rank, job.alpha, job.target_modules) == (8, 64, ("q_proj",))


@pytest.mark.parametrize("space", [None, {"learning_rate": [1e-4]}, {"method": "list", "jobs": [{"learning_rate": 1e-4}]}])
def test_jobs_have_the_scale_and_the_precision_of_a_tuned_model(space):
    """Its alpha may be the largest that a job can have."""
    shape = PeftSettings(rank=8, alpha=MAX_ALPHA, rslora=True, target_modules=["q_proj"])
    spec = JobRequest.model_validate(FILE | {"search_space": space}).spec(TunedStart("adapter_1", "small", "nf4", shape))
    assert {(job.rank, job.alpha, job.rslora, job.target_modules) for job in spec.jobs()} == {(8, MAX_ALPHA, True, ("q_proj",))}
    assert spec.precision == "nf4"


def test_the_rest_of_a_request_lands_in_the_spec():
    said = {"validation_file": "file_2", "suffix": "mine", "metadata": {"a": "b"}, "gpus": 2, "priority": 3, "max_gpus": 8}
    spec = JobRequest.model_validate(FILE | said).spec()
    assert (spec.dataset.file_id, spec.dataset.validation_file_id, spec.name) == ("file_1", "file_2", "mine")
    assert (spec.labels, spec.gpus, spec.max_gpus, spec.priority) == ({"a": "b"}, 2, 8, 3)
    scored = {"evaluation": {"metrics": [{"type": "bleu"}], "max_prompts": 3}, "select_by": "bleu"}
    spec = JobRequest.model_validate(FILE | scored).spec()
    assert spec.evaluation is not None
    assert (spec.evaluation.names, spec.evaluation.max_prompts, spec.select_by) == (["bleu"], 3, "bleu")


@pytest.mark.parametrize(
    "said",
    [
        {"search_space": {"learning_rate": [1e-4]}, "hyperparameters": {"batch_size": 8}},
        {"search_space": {"learning_rate": [1e-4]}, "seed": 1},
        {"training": {"epochs": 1}, "hyperparameters": {"n_epochs": 2}},
        {"hyperparameters": {"n_epochs": 2}} | supervised(n_epochs=1),
        {"hyperparameters": {"batch_size": 2}, "method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2}}}},
        {"gpus": 2, "max_gpus": 3},
        {"hyperparameters": {"learning_rate_multiplier": 0}},
        {"hyperparameters": {"learning_rate_multiplier": True}},
        {"method": {"type": "reinforcement"}},
        {"method": {"type": "supervised", "dpo": {"hyperparameters": {"beta": 0.2}}}},
        {"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0}}}},
        {"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2}}}, "search_space": {"learning_rate": [1e-4]}},
        {"metadata": {"": "x"}},
        {"suffix": "a:b"},
        {"search_space": {"learning_rate": [1e-4], "beta": [0.2]}},
        {"select_by": "bleu"},
    ],
)
def test_what_contradicts_itself_is_refused(tenant, said):
    response = tenant.post("/openai/v1/fine_tuning/jobs", json=FILE | said)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"


def test_a_multiplier_that_is_too_small_is_named_as_it_was_sent(tenant):
    asked = FILE | {"hyperparameters": {"learning_rate_multiplier": 5e-324}}
    error = tenant.post("/openai/v1/fine_tuning/jobs", json=asked).json()["error"]
    assert error["param"] == "hyperparameters.learning_rate_multiplier"
    assert "0.000001" in error["message"]


@pytest.mark.parametrize(
    ("asked", "named"),
    [([{"type": "comet", "comet": {"project": "p"}}], "comet"), ([{"type": 3}, 4], "3")],
)
def test_a_mirror_that_is_not_there_is_refused_with_what_to_take_instead(tenant, asked, named):
    error = tenant.post("/openai/v1/fine_tuning/jobs", json=FILE | {"integrations": asked}).json()["error"]
    assert error["param"] == "integrations"
    assert error["message"].startswith(f"integrations: runs are not sent to {named}; mirror them to Weights & Biases")
    assert "metrics.csv" in error["message"]


@pytest.mark.parametrize("none", [None, []])
def test_no_mirror_is_accepted(none):
    assert not JobRequest.model_validate(FILE | {"integrations": none}).integrations


def test_a_mistyped_field_is_told_with_what_was_meant(tenant):
    error = tenant.post("/openai/v1/fine_tuning/jobs", json=FILE | {"training_fil": "x"}).json()["error"]
    assert (error["param"], error["message"]) == (
        "training_fil",
        "training_fil: is not a known field; did you mean 'training_file'?",
    )


def test_a_wrong_field_is_told_in_the_requests_own_terms(tenant):
    wrong = FILE | {"hyperparameters": {"n_epochs": 0}, "created_by": "me"}
    response = tenant.post("/openai/v1/fine_tuning/jobs", json=wrong | supervised(n_epochs=0.5, batch_size="all"))
    assert response.json()["error"]["param"] == "method.supervised.hyperparameters.n_epochs"
    error = tenant.post("/openai/v1/fine_tuning/jobs", json=FILE | {"hyperparameters": {"n_epochs": 0}}).json()["error"]
    said = "hyperparameters.n_epochs: should be 'auto', or should be greater than or equal to 1, got 0"
    assert (error["param"], error["message"]) == ("hyperparameters.n_epochs", said)
    unknown = tenant.post("/openai/v1/fine_tuning/jobs", json=FILE | {"zzz": 1}).json()["error"]["message"]
    assert "hyperparameters" in unknown
    assert "finished_at" not in unknown, "that is a field of answers"


def test_errors_of_every_kind_have_openais_form(tenant, client):
    for response, status, kind in (
        (client.get("/openai/v1/models"), 401, "authentication_error"),
        (tenant.get("/openai/v1/nothing"), 404, "not_found_error"),
        (tenant.post("/openai/v1/fine_tuning/jobs", content=b"{"), 400, "invalid_request_error"),
        (tenant.get("/openai/v1/files?after=file_0"), 400, "invalid_request_error"),
        (tenant.get("/openai/v1/models?after=x"), 400, "invalid_request_error"),
        (tenant.delete("/openai/v1/models"), 405, "invalid_request_error"),
    ):
        assert (response.status_code, response.json()["error"]["type"]) == (status, kind), response.text


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_go_on_behind_a_file_that_was_deleted_meanwhile(new_tenant, order):
    tenant = new_tenant()
    made = [tenant.file(chat_rows(2 + more)).replace("file_", "file-") for more in range(3)]
    seen, query = [], {"limit": 1, "order": order}
    while True:
        page = tenant.get("/openai/v1/files", params=query).json()
        seen += [file["id"] for file in page["data"]]
        assert tenant.delete(f"/openai/v1/files/{page['last_id']}").status_code == 200
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
    assert seen == (made if order == "asc" else made[::-1])
    other = new_tenant().get("/openai/v1/files", params={"after": seen[0]})
    assert (other.status_code, other.json()["error"]["param"]) == (400, "after")


def test_a_job_is_made_once_under_its_key(tenant):
    body = {"model": "small", "training_file": tenant.file()}
    headers = {"idempotency-key": "k"}
    first, again = (tenant.post("/openai/v1/fine_tuning/jobs", json=body, headers=headers) for _ in range(2))
    assert first.status_code == 200, first.text
    assert again.json() == first.json()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "purpose"),
        ({"purpose": "batch"}, "purpose"),
        ({"purpose": "fine-tune", "expires_after[anchor]": "now"}, "expires_after[anchor]"),
        ({"purpose": "fine-tune", "expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        *(
            ({"purpose": "fine-tune", "expires_after[anchor]": "created_at", "expires_after[seconds]": seconds}, SECONDS)
            for seconds in ("60", "2592001", "0025920009999999999999")
        ),
        ({"purpose": "fine-tune", "porpoise": "x"}, "porpoise"),
    ],
)
def test_an_uploads_mistakes_name_their_part(tenant, fields, param):
    rows = b'{"prompt": "a", "completion": "b"}\n'
    response = tenant.post("/openai/v1/files", files={"file": ("f.jsonl", rows)}, data=fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_a_job_is_paused_and_resumed(tenant, plan):
    job = tenant.post("/openai/v1/fine_tuning/jobs", json={"model": "small", "training_file": tenant.file()}).json()
    plan()
    said = []
    for act in ("pause", "resume"):
        response = tenant.post(f"/openai/v1/fine_tuning/jobs/{job['id']}/{act}")
        assert response.status_code == 200, response.text
        said.append(response.json()["status"])
    assert said == ["paused", "queued"]
    told = tenant.get(f"/openai/v1/fine_tuning/jobs/{job['id']}/events").json()["data"]
    assert [event["data"]["status"] for event in told[:2]] == ["queued", "paused"]
    tenant.post(f"/openai/v1/fine_tuning/jobs/{job['id']}/cancel")
    assert tenant.post(f"/openai/v1/fine_tuning/jobs/{job['id']}/pause").status_code == 400


def test_a_jobs_expected_end_is_told_while_it_waits_and_while_it_runs(tenant, new_node, plan):
    node = new_node()
    made = [
        tenant.post("/openai/v1/fine_tuning/jobs", json={"model": "small", "training_file": tenant.file()}).json()["id"]
        for _ in range(2)
    ]
    plan()
    told = [tenant.get(f"/openai/v1/fine_tuning/jobs/{job}").json() for job in made]
    assert sorted(job["status"] for job in told) == ["queued", "running"]
    assert all(job["estimated_finish"] > job["created_at"] for job in told)
    running = next(job for job in told if job["status"] == "running")
    taken = node.take(own_id(running["id"]))
    taken.report(taken.attached())
    taken.report(moved(0, "warmup"), points(0, [1, 2], [3.0, 2.5]), points(0, [2], [2.75], "val_loss"))
    events = tenant.get(f"/openai/v1/fine_tuning/jobs/{running['id']}/events").json()["data"]
    metrics = next(event for event in events if event["type"] == "metrics")["data"]
    assert (metrics["step"], metrics["train_loss"], metrics["valid_loss"]) == (2, 2.5, 2.75)
