"""openapi.yaml is what the code says, and says what a reader needs."""

from pathlib import Path

import pytest
import yaml
from fastapi.routing import APIRoute

from service.app import routes
from service.http.openapi import as_yaml, document
from service.http.request_bodies import NO_BODY

COMMITTED = Path(__file__).parents[3] / "openapi.yaml"


@pytest.fixture(scope="module")
def schema():
    return document(routes())


def test_the_committed_file_is_current():
    assert COMMITTED.read_text() == as_yaml(routes()), "run: make openapi"


def test_it_is_the_same_each_time():
    assert as_yaml(routes()) == as_yaml(routes())


def test_a_route_that_takes_no_body_refuses_one():
    """A body that nothing reads would be ignored without a word."""
    for route in routes().routes:
        if isinstance(route, APIRoute) and "POST" in route.methods and route.path.startswith(("/v1/", "/openai/v1/")):
            reads = route.body_field is not None or route.dependant.request_param_name is not None
            assert reads != (NO_BODY in route.dependencies), route.path


def operations(schema):
    return [(path, method, one) for path, methods in schema["paths"].items() for method, one in methods.items()]


def test_every_operation_is_named_once_and_described(schema):
    ids = [one["operationId"] for _, _, one in operations(schema)]
    assert len(ids) == len(set(ids))
    for path, method, one in operations(schema):
        assert one["summary"], f"{method} {path}"
        assert one["tags"], f"{method} {path}"


def test_every_operation_behind_a_key_says_so_and_what_errors_look_like(schema):
    for path, method, one in operations(schema):
        if path in ("/livez", "/readyz") or path.startswith("/v1/sign-in/") or path == "/v1/sign-in":
            continue
        assert one["security"] == [{"ApiKey": []}], f"{method} {path}"
        assert {"401", "403"} <= set(one["responses"]), f"{method} {path}"
        for status, answer in one["responses"].items():
            if status >= "400":
                assert answer["content"]["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/Problem"}


def test_no_reference_leads_nowhere_and_nothing_internal_shows(schema):
    text = yaml.safe_dump(schema)
    references = {word.strip("'\"") for word in text.split() if "#/components/schemas/" in word}
    assert {reference.rpartition("/")[2] for reference in references} <= set(schema["components"]["schemas"])
    assert "/internal/" not in text
    assert "HTTPValidationError" not in text
