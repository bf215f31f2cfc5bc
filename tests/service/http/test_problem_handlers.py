"""Every error is a problem: what was wrong, with which field, and what would be right."""

import pytest

from service.http.body_middleware import MAX_BODY_BYTES
from tests.service.api import Caller
from tests.service.http.problems import problem_of


def errors_of(response) -> dict[str, str]:
    return {error["field"]: error["message"] for error in problem_of(response, 422, "invalid")["errors"]}


def test_no_such_route(client):
    unknown = problem_of(client.get("/v1/taskz"), 404, "route_unknown")["detail"]
    assert unknown == "There is no /v1/taskz here; /openapi.json lists what there is below /v1."


def test_not_that_method(client):
    response = client.put("/v1/tasks")
    problem_of(response, 405, "method_not_allowed")
    assert set(response.headers["allow"].split(", ")) >= {"GET", "POST"}
    assert "it takes " + response.headers["allow"] in response.json()["detail"]


def test_no_key(client):
    response = client.get("/v1/tasks")
    problem_of(response, 401, "key_missing")
    assert response.headers["www-authenticate"] == "Bearer"


def test_a_request_id_is_the_callers_if_it_is_sane(client):
    assert client.get("/livez", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for insane in ("a b", "x" * 65, "é".encode()):
        assert client.get("/livez", headers={"x-request-id": insane}).headers["x-request-id"].startswith("req_")


def test_a_path_names_no_member_of_a_union(tenant):
    metrics = [{"type": "number", "markr": "x"}, {"type": "json_schema", "json_schema": 3}, {"type": "endpoint", "url": "x"}]
    named = {"type": "endpoint", "url": "https://x", "headers": {"a b": "c"}}
    body = {"base_model": "small", "dataset": {"file_id": "f"}, "search_space": {"learning_rate": ["fast"]}}
    found = errors_of(tenant.post("/v1/tasks", json=body | {"evaluation": {"metrics": [*metrics, named]}}))
    assert list(found) == [
        "search_space.learning_rate[0]",
        *(f"evaluation.metrics[{part}" for part in ("0].markr", "1].json_schema", "2].url", "3].headers.a b.[key]")),
    ]
    assert found["evaluation.metrics[0].markr"] == "is not a known field; did you mean 'marker'?"


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ('{"a": 1,\n "b" 2}', 2, "column 6"),
        ("{", 1, "column 2"),
    ],
)
def test_broken_json_is_shown_where_it_breaks(tenant, body, line, words):
    response = tenant.post("/v1/tasks", content=body, headers={"content-type": "application/json"})
    problem = problem_of(response, 400, "json_invalid")
    assert problem["errors"][0]["line"] == line
    assert words in problem["errors"][0]["message"]
    assert f"line {line}" in problem["detail"]


def test_json_that_is_not_utf8(tenant):
    response = tenant.post("/v1/tasks", content=b'{"a": "\xff"}', headers={"content-type": "application/json"})
    assert "not UTF-8" in problem_of(response, 400, "bad_request")["detail"]


@pytest.mark.parametrize("path", ["/v1/tasks", "/v1/batches", "/v1/webhooks", "/v1/files/preview", "/v1/tasks/estimate"])
def test_json_that_is_nested_too_deeply(tenant, path):
    nested = b'{"labels": ' * 100_000 + b"1" + b"}" * 100_000
    response = tenant.post(path, content=nested, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422)
    assert "recursion depth" not in response.text


def test_a_number_of_too_many_digits_names_the_limit(tenant):
    response = tenant.post("/v1/tasks", content=b'{"gpus": ' + b"9" * 5000 + b"}", headers={"content-type": "application/json"})
    said = problem_of(response, 400, "bad_request")["detail"]
    assert said == "The body holds a whole number of more than 4,300 digits; write a smaller one, or a text."


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", "x" * 129, "must have at most 128 characters, got 129"),
        ("search_space.rank", list(range(1, 258)), "must have at most 256 items, got 257"),
        ("deadline", "soon", "input is too short, got 'soon'; write it as 2027-01-31T12:00:00Z"),
        ("deadline", "2027-13-01T00:00:00Z", "got '2027-13-01T00:00:00Z'; write it as 2027-01-31T12:00:00Z"),
        ("evaluation.metrics[0]", {"type": "bertscore"}, "has the 'type' 'bertscore'; it must be one of 'exact_match', "),
        ("evaluation.metrics[0]", {}, "must say its 'type'"),
    ],
)
def test_a_value_is_told_its_limit_or_how_to_write_it(tenant, field, value, message):
    name, _, inner = field.partition(".")
    body = {name: value if not inner else {"metrics": [value]} if "metrics" in inner else {inner: value}}
    assert message in errors_of(tenant.post("/v1/tasks", json=body))[field]


def test_json_that_does_not_say_it_is(tenant):
    response = tenant.post("/v1/tasks", content=b"{}", headers={"content-type": "application/x-www-form-urlencoded"})
    assert "Content-Type: application/json" in problem_of(response, 400, "bad_request")["detail"]


def test_a_wrong_event_is_answered_with_those_there_are(tenant):
    answer = tenant.post("/v1/webhooks", json={"url": "https://8.8.8.8/", "events": ["task.succeded"]})
    (error,) = answer.json()["errors"]
    assert error["message"].startswith("should be 'task.running', 'task.paused',")


def test_an_empty_body_is_said_to_be_empty(tenant):
    answer = tenant.post("/v1/tasks", content=b"", headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["detail"]) == (400, "The body is empty; it must be JSON.")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/tasks/none/archive", "this route takes no body; what it takes are parameters of the query: archived"),
        ("/v1/tasks/none/cancel", "this route takes no body"),
        ("/v1/webhooks/none/rotate", "this route takes no body"),
        ("/openai/v1/fine_tuning/jobs/none/pause", "this route takes no body"),
    ],
)
def test_a_body_that_nothing_would_read_is_refused(tenant, path, words):
    answer = tenant.post(path, json={"archived": False})
    assert (answer.status_code, words in answer.text) == (400 if "openai" in path else 422, True)
    for nothing in (b"", b"{}", b" { }\n"):
        sent = tenant.post(path, content=nothing, headers={"content-type": "application/json"})
        assert sent.status_code == 404
    padded = tenant.post(path, content=b" " * 64 + b'{"archived": false}', headers={"content-type": "application/json"})
    assert padded.status_code == answer.status_code


def test_a_list_is_empty_or_has_wrong_items_and_not_both(tenant):
    def said(space):
        answer = tenant.post("/v1/tasks", json={"base_model": "m", "dataset": {"file_id": "f"}, "search_space": space})
        return {error["field"]: error["message"] for error in answer.json()["errors"]}

    found = said({"learning_rate": [], "target_modules": [["q"]]})
    assert found["search_space.learning_rate"] == "must not be empty"
    assert found["search_space.target_modules[0][0]"].startswith("should be 'q_proj'")
    assert "search_space.target_modules[0]" not in found
    found = said({"learning_rate": [1e-4], "target_modules": ["q_proj", ["v_proj"]]})
    assert found["search_space.target_modules[0]"] == "must be a list, such as [\"q_proj\"], got 'q_proj'"


def test_nan_names_its_field(tenant):
    body = '{"base_model": "m", "dataset": {"file_id": "f"}, "search_space": {"learning_rate": [1e-4, NaN, Infinity]}}'
    response = tenant.post("/v1/tasks", content=body, headers={"content-type": "application/json"})
    assert errors_of(response) == {
        "search_space.learning_rate[1]": "should be a finite number, got nan",
        "search_space.learning_rate[2]": "should be a finite number, got inf",
    }


def test_every_field_is_named_and_a_near_name_is_offered(tenant):
    spec = tenant.spec("f", gpus=0, search_space={"learning_rate": [-1], "rnk": [8]}, lables={}, early_exit={"policy": "alto!"})
    assert errors_of(tenant.post("/v1/tasks", json=spec)) == {
        "gpus": "should be greater than or equal to 1, got 0",
        "search_space.learning_rate[0]": "should be greater than 0, got -1",
        "search_space.rnk": "is not a known field; did you mean 'rank'?",
        "lables": "is not a known field; did you mean 'labels'?",
        "early_exit.policy": "should be 'alto', 'alto_guarded', 'asha' or 'none', got 'alto!'",
    }


def test_a_field_that_is_like_no_other_shows_which_there_are(tenant):
    spec = tenant.spec("f", dataset={"file_id": "f", "zzz": 1})
    message = errors_of(tenant.post("/v1/tasks", json=spec))["dataset.zzz"]
    assert message.endswith("the fields here are: file_id, max_validation_rows, validation_file_id, validation_fraction")


def test_the_fields_that_are_shown_are_the_bodys_and_no_setting_of_the_service(tenant):
    said = {"bytes": 1, "filename": "a", "mime_type": "text/jsonl", "purpose": "fine-tune", "zzz": 1}
    message = tenant.post("/openai/v1/uploads", json=said).json()["error"]["message"]
    assert message.endswith("the fields here are: bytes, expires_after, filename, mime_type, purpose")


def test_the_fields_of_a_body_that_may_be_left_out_are_shown(admin):
    assert errors_of(admin.post("/v1/admin/nodes/none/drain", json={"zzz": 1})) == {
        "zzz": "is not a known field; the fields here are: evict"
    }


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/tasks", {"deadline": "2027-01-01T00:00:00Z", "not_before": "2027-01-02T00:00:00Z"}, "deadline"),
        ("/v1/tasks", {"select_by": "accuracy"}, "select_by"),
        ("/openai/v1/chat/completions", {"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
        ("/openai/v1/chat/completions", {"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_fields_that_do_not_go_together_are_named(tenant, path, body, field):
    spec = {"model": "small", "messages": [{"role": "user", "content": "a"}]} if "openai" in path else tenant.spec("f")
    told = tenant.post(path, json=spec | body).json()
    assert (told["error"]["param"] if "error" in told else told["errors"][0]["field"]) == field


def test_an_answer_without_a_body_names_no_type_of_one(tenant):
    id = tenant.file()
    deleted = tenant.delete(f"/v1/files/{id}")
    assert (deleted.status_code, deleted.content, deleted.headers.get("content-type")) == (204, b"", None)


def test_a_parameter_says_where_it_stands(tenant):
    assert errors_of(tenant.get("/v1/tasks?limit=0&status=done")) == {
        "limit": "(query) should be greater than or equal to 1, got '0'",
        "status[0]": "(query) should be 'validating', 'queued', 'running', 'paused', 'succeeded', 'failed' or 'cancelled', "
        "got 'done'",
    }


def test_what_was_sent_is_said_back_briefly_and_safely(tenant):
    body = '{"precision": "' + "x" * 5000 + '", "gpus": "\\udfff"}'
    response = tenant.post("/v1/tasks", content=body, headers={"content-type": "application/json"})
    assert len(response.content) < 3000
    errors = errors_of(response)
    assert errors["gpus"].endswith("got '\\udfff'")
    assert errors["precision"].endswith("xxx…")


@pytest.mark.parametrize(
    ("path", "field", "value", "shown"),
    [
        ("/openai/v1/chat/completions", "messages", '"\\ud800"', "\\ud800"),
        ("/v1/batches", "tasks", '"' + "y" * 1_000_000 + '"', "yyy…"),
    ],
    ids=["surrogate", "long"],
)
def test_a_text_where_a_list_belongs_is_said_back_so_too(tenant, path, field, value, shown):
    body = f'{{"model": "m", "{field}": {value}}}'
    response = tenant.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422)
    assert len(response.content) < 3000
    assert f"{field}: must be a list" in response.text
    assert shown in response.text.replace("\\\\", "\\")


def test_a_key_that_is_no_text_is_refused(tenant):
    response = tenant.post("/v1/tasks", content=b'{"\\ud800": 1}', headers={"content-type": "application/json"})
    assert problem_of(response, 422, "invalid")["errors"]


@pytest.mark.parametrize("path", ["/v1/tasks/%00", "/v1/files/%00", "/v1/jobs/a%00b", "/v1/adapters/%00/files/x"])
def test_there_is_nothing_whose_id_holds_a_nul(tenant, path):
    problem_of(tenant.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/adapters?limit=3&task_id=%00", "task_id"),
        ("/v1/audit?action=%00", "action"),
        ("/openai/v1/files?after=%00", "after"),
        ("/v1/tasks/none/metrics?job=99999999999999999", "job[0]"),
    ],
)
def test_a_parameter_that_no_query_takes_is_named(tenant, path, field):
    answer = tenant.get(path)
    if path.startswith("/openai"):
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    else:
        assert answer.status_code == 422, answer.text
        assert [error["field"] for error in answer.json()["errors"]] == [field]


@pytest.mark.parametrize("path", ["/v1/keys", "/v1/admin/tenants/none/keys"])
def test_a_moment_that_cannot_be_stored_is_named(tenant, admin, path):
    said = errors_of((admin if "admin" in path else tenant).post(path, json={"expires_at": "9999-12-31T23:59:59-14:00"}))
    assert said == {"expires_at": "lies after the year 2199"}


@pytest.mark.parametrize("path", ["/v1/tasks", "/v1/files/preview", "/v1/files"])
def test_a_body_beyond_all_measure(tenant, path):
    response = tenant.post(path, content=b" " * (MAX_BODY_BYTES + 1), headers={"content-type": "application/json"})
    assert str(MAX_BODY_BYTES) in problem_of(response, 413, "too_large")["detail"]


def test_a_body_that_says_so_before_it_comes_is_not_waited_for(tenant):
    headers = {"content-type": "application/json", "content-length": str(2**31)}
    response = tenant.post("/v1/tasks", content=b"{}", headers=headers)
    assert str(MAX_BODY_BYTES) in problem_of(response, 413, "too_large")["detail"]


def test_what_nobody_foresaw_tells_nothing_but_its_number(settings, serve):
    caller: Caller = serve(settings)

    @caller.client.app.get("/v1/boom")  # type: ignore[attr-defined]
    def boom() -> None:
        raise RuntimeError("secret of the service")

    response = caller.get("/v1/boom")
    body = problem_of(response, 500, "internal")
    assert "secret" not in response.text
    assert body["request_id"] in body["detail"]
