"""The public OpenAPI document: FastAPI's, with our problem schema instead of its validation error, as deterministic YAML."""

from collections.abc import Iterator
from typing import Any

import yaml
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from service.http.problems import ProblemBody
from service.http.response_schemas import other, problems

_DESCRIPTION = (
    "A task trains every configuration of a search space over one base model, stops the hopeless ones early, and hands back "
    "the best adapter. Every error is a problem (RFC 9457) whose `errors` name the fields that are wrong. Times are RFC 3339 "
    "in UTC. Lists are pages: pass `next_cursor` as `cursor` until it is null."
)
_FASTAPI_OWN = ("HTTPValidationError", "ValidationError")
_REFS = "#/components/schemas/"

_CONFIGURED = ("JobResource", "Lineage", "Winner")  # these too show a stored configuration without validating it


def install(app: FastAPI) -> None:
    """Make `app.openapi()` and /openapi.json return this document."""
    app.openapi = lambda: document(app)  # type: ignore[method-assign]


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, without internal routes."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title, version=app.version, summary=app.summary, description=_DESCRIPTION, routes=app.routes
        )
        for operation in _operations(made):
            _say_problems(operation)
        made["components"]["schemas"] = _schemas(made["components"]["schemas"])
        app.openapi_schema = made
    return app.openapi_schema


def as_yaml(app: FastAPI) -> str:
    """The document as it is committed in openapi.yaml."""
    return yaml.safe_dump(document(app), sort_keys=False, allow_unicode=True, width=128)


def _operations(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in made["paths"].values():
        yield from path.values()


def _say_problems(operation: dict[str, Any]) -> None:
    """Add problem responses: 422 in place of FastAPI's own, 429 where a key is needed, 400 and 413 where there is a body, and a
    default for every other status. Sorts the responses by status."""
    answers = operation["responses"]
    if "requestBody" in operation:
        answers |= {str(status): answer for status, answer in problems(400, 413).items()}
    if "401" in answers:
        answers |= {str(status): answer for status, answer in problems(429).items()}
    if "422" in answers:
        answers |= {str(status): answer for status, answer in problems(422).items()}
    operation["responses"] = dict(sorted(answers.items())) | other()


def _schemas(schemas: dict[str, Any]) -> dict[str, Any]:
    own = {name: schema for name, schema in schemas.items() if name not in _FASTAPI_OWN}
    # the response model does not validate a stored spec, since later code may refuse it; the document shows its schema
    own["TaskResource"]["properties"]["spec"] = {"$ref": _REFS + "TaskSpec"}
    for holder in _CONFIGURED:
        own[holder]["properties"]["config"] = {"$ref": _REFS + "JobConfig"}
    problem = ProblemBody.model_json_schema(ref_template=_REFS + "{model}")
    own |= problem.pop("$defs")
    return dict(sorted((own | {problem["title"]: problem}).items()))
