"""A key twice in an object of a JSON body is refused by name, as it is in rows and in YAML specs."""

import json

import pytest

from service.http.body_middleware import MAX_JSON_MARKS
from tests.service.http.problems import problem_of

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"priority": 2, "priority": 3}', "priority"),
        ('{"search_space": {"rank": [8], "rank": [8]}}', "rank"),
        (
            '{"evaluation": {"metrics": [{"type": "exact_match"}, {"type": "a", "name": "b", "type": "c"}]}}',
            "type",
        ),
        ('{"a": {"b": 1, "b": 2}, "a": 3, "c": 4, "c": 4}', "b"),
        ('{"labels": {"a": "' + "x" * 100_000 + '", "b": "1", "b": "2"}}', "b"),
    ],
)
def test_a_key_twice_is_named(tenant, body, field):
    for path in ("/v1/tasks", "/v1/batches", "/v1/files", "/v1/webhooks", "/v1/tasks/none/cancel"):
        problem = problem_of(tenant.post(path, content=body, headers=JSON), 422, "invalid")
        assert problem["errors"] == [
            {"field": field, "code": "duplicate_key", "message": "stands twice in one object; leave one of them"}
        ]


def test_the_face_of_openai_names_it_too(tenant):
    for path in ("/openai/v1/fine_tuning/jobs", "/openai/v1/chat/completions"):
        answer = tenant.post(path, content='{"model": "m", "seed": 1, "seed": 2}', headers=JSON)
        assert answer.status_code == 400
        assert {name: answer.json()["error"][name] for name in ("param", "code", "type")} == {
            "param": "seed",
            "code": "duplicate_key",
            "type": "invalid_request_error",
        }


def test_nobody_is_told_so_before_the_key_is_checked(client):
    answer = client.post("/v1/tasks", content='{"priority": 2, "priority": 3}', headers=JSON)
    problem_of(answer, 401, "key_missing")


@pytest.mark.parametrize("value", ["[]", '{"a":1}', "1"])
def test_a_body_of_so_many_values_that_others_would_wait_is_refused(tenant, client, value):
    most = MAX_JSON_MARKS // (1 if value == "1" else 2)
    body = f'{{"x": [{",".join([value] * (most + 1))}]}}'
    for path in ("/v1/tasks", "/v1/webhooks", "/openai/v1/fine_tuning/jobs"):
        answer = tenant.post(path, content=body, headers=JSON)
        assert answer.status_code == 413
        assert "at most 524,288 commas and opening brackets" in answer.text
    problem_of(client.post("/v1/webhooks", content=body, headers=JSON), 401, "key_missing")
    fewer = f'{{"x": [{",".join([value] * (most - 9))}]}}'
    problem_of(tenant.post("/v1/webhooks", content=fewer, headers=JSON), 422, "invalid")


def test_one_name_in_several_objects_is_no_key_twice(tenant):
    body = json.dumps(tenant.spec(tenant.file(), labels={"priority": "a", "seed": "b"}, priority=2))
    assert tenant.post("/v1/tasks", content=body, headers=JSON).status_code == 201


def test_rows_in_a_text_are_not_a_body(tenant):
    rows = tenant.upload(b'{"prompt": "a", "prompt": "b", "completion": "c"}\n')
    assert rows.json()["errors"][0]["code"] == "duplicate_key"
    assert rows.json()["errors"][0]["line"] == 1
