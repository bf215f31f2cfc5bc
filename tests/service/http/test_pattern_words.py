"""A text that a pattern refuses is told what is expected, with an example, and not the regular expression."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from contract.wording.pattern_words import PATTERN_WORDS
from service.app import routes


def patterns_in(schema: Any) -> Iterator[str]:
    """Of texts, and of the keys of objects."""
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        yield from schema.get("patternProperties", ())
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from patterns_in(inner)


def test_every_pattern_of_the_api_has_words(monkeypatch):
    public = [one for one in routes().routes if isinstance(one, APIRoute) and one.path.startswith(("/v1/", "/openai/v1/"))]
    for route in public:
        monkeypatch.setattr(route, "include_in_schema", True)  # also OpenAI's face
    found = {*patterns_in(get_openapi(title="all", version="0", routes=public))}
    assert found - PATTERN_WORDS.keys() == set()
    assert PATTERN_WORDS.keys() - found == set(), "no field has these any more"
    assert [words for words in PATTERN_WORDS.values() if "such as" not in words] == []


@pytest.mark.parametrize(
    ("method", "path", "how", "message"),
    [
        ("GET", "/v1/usage?month=2026-13", {}, "(query) must be a month, such as 2026-11, got '2026-13'"),
        (
            "GET",
            "/v1/tasks?label=team",
            {},
            "(query) must be a label's name and value with = between them, such as team=search",
        ),
        ("POST", "/v1/tasks", {"headers": {"Idempotency-Key": "a b"}}, "(header) must be printable ASCII without spaces"),
        ("POST", "/v1/hub-pushes", {"json": {"repository": "acme"}}, "must be organisation/name, such as acme/"),
        (
            "POST",
            "/openai/v1/fine_tuning/jobs",
            {"json": {"model": "m", "training_file": "f", "suffix": "a:b"}},
            "must be one line without colons and control characters, such as support-bot, got 'a:b'",
        ),
        (
            "POST",
            "/openai/v1/uploads/none/complete",
            {"json": {"part_ids": ["p"], "md5": "0"}},
            "must be an MD5 as 32 hexadecimal digits",
        ),
    ],
)
def test_what_is_expected_is_said_with_an_example(tenant, method, path, how, message):
    answer = tenant.request(method, path, **({"json": {}} if method == "POST" else {}) | how)
    told = answer.json()
    said = told["error"]["message"] if "error" in told else "; ".join(error["message"] for error in told["errors"])
    assert message in said
    assert "pattern" not in said


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"source": "hf://datasets/a/b", "dry_run": "maybe"}', "dry_run: must be true or false, got 'maybe'"),
        (b'{"source": "hf://datasets/a/b", "dry_run": null}', "dry_run: must be true or false, got null"),
        (b'{"source": true}', "source: should be a valid string, got true"),
        (
            b'{"source": "\\ud800"}',
            "source: holds half of a surrogate pair (\\ud800 to \\udfff), which is no character, got '\\ud800'",
        ),
    ],
)
def test_a_value_of_another_kind_is_told_in_words_of_json(tenant, body, message):
    answer = tenant.post("/v1/files", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["detail"]) == (422, message)
