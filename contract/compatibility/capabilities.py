"""Capabilities: what a task's spec requires and what a worker understands, as two sets of strings to compare.

A capability is the path of a spec's field (`training.epochs`), or a path with one of its values where the field is a choice
(`early_exit.policy=asha`), or a family of base models (`model_type=llama`). A worker derives its capabilities from the TaskSpec
it was built with, so nobody maintains a list: an older worker simply lacks a field that was added later. Knows no fleet and no
program versions.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from contract.evaluation.text_evaluation import NAME_OF_0_2
from contract.model_types import MODEL_TYPES
from contract.task_spec import TaskSpec

# Read by the service alone: a worker that does not know one of these fields can still train the task.
SERVICE_FIELDS = frozenset(
    {"name", "priority", "labels", "not_before", "deadline", "max_gpus", "max_slowdown", "isolation", "integrations"}
)
SHARING = "sharing"  # the worker trains several tasks on one executor, each within its bound
ANSWERS_ONLY = "answers_only"  # the worker holds a base to answer completions alone
MERGES = "merges"  # the worker merges adapters into bases
HUB_BASES = "base_model=hf"  # the worker fetches bases from the hub by itself
STORED_BASES = "base_model=storage"  # the worker fetches bases from the service's storage
SHARDED_BASES = "sharded_bases"  # the worker shards a base over a placement's devices where copies do not fit
METRIC_NAMES = "evaluation.metrics.name=any"  # the worker takes names of metrics that 0.2.0 refuses

Schema = Mapping[str, Any]


def understood(spec_schema: Schema | None = None, model_types: Iterable[str] = MODEL_TYPES) -> frozenset[str]:
    """The capabilities of a worker built with this spec schema (default: the current one)."""
    schema = _today() if spec_schema is None else spec_schema
    found = {
        SHARING,
        ANSWERS_ONLY,
        MERGES,
        HUB_BASES,
        STORED_BASES,
        SHARDED_BASES,
        METRIC_NAMES,
        *(f"model_type={name}" for name in model_types),
    }
    for name, field in schema["properties"].items():
        if name not in SERVICE_FIELDS:
            found.update(_all(schema, field, name))
    return frozenset(found)


def needed(spec: Mapping[str, Any], model_type: str | None = None, spec_schema: Schema | None = None) -> frozenset[str]:
    """The capabilities that a worker needs to train this stored spec: one for every field whose value is not the default.

    A field that this version's schema lacks is required by its path, unless it is null: a newer version gave it a meaning.
    """
    schema = _today() if spec_schema is None else spec_schema
    found = {f"model_type={model_type}"} if model_type is not None else set()
    for name, value in spec.items():
        if name not in SERVICE_FIELDS:
            found.update(_said(schema, schema["properties"].get(name), name, value))
    metrics = (spec.get("evaluation") or {}).get("metrics", ())
    if any(not NAME_OF_0_2.fullmatch(metric.get("name") or metric.get("type", "")) for metric in metrics):
        found.add(METRIC_NAMES)
    return frozenset(found)


@cache
def _today() -> Schema:
    return TypeAdapter(TaskSpec).json_schema()


def _branches(schema: Schema, field: Schema) -> Iterator[Schema]:
    """The alternative schemas of a field, references resolved."""
    if "$ref" in field:
        yield from _branches(schema, schema["$defs"][field["$ref"].rpartition("/")[2]])
    for branch in field.get("anyOf", field.get("oneOf", ())):
        yield from _branches(schema, branch)
    yield field


def _choices(form: Schema) -> list[Any]:
    return [*form.get("enum", ()), *([form["const"]] if "const" in form else ())]


def _all(schema: Schema, field: Schema, path: str) -> Iterator[str]:
    yield path
    for form in _branches(schema, field):
        yield from (f"{path}={choice}" for choice in _choices(form))
        for name, inner in form.get("properties", {}).items():
            yield from _all(schema, inner, f"{path}.{name}")
        if "items" in form:
            yield from _all(schema, form["items"], path)


def _said(schema: Schema, field: Schema | None, path: str, value: Any) -> Iterator[str]:
    if field is None:
        if value is not None:
            yield path
        return
    if "default" in field and value == field["default"]:
        return
    yield path
    forms = list(_branches(schema, field))
    if not isinstance(value, dict | list) and any(_choices(form) for form in forms):
        yield f"{path}={value}"
    fields = {name: inner for form in forms for name, inner in form.get("properties", {}).items()}
    for name, inner in value.items() if isinstance(value, dict) and fields else ():
        yield from _said(schema, fields.get(name), f"{path}.{name}", inner)
    items = next((form["items"] for form in forms if "items" in form), None)
    for one in value if isinstance(value, list) and items is not None else ():
        yield from _said(schema, items, path, one)
