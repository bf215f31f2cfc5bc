"""A spec in its own order, and how several differ, field by field. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from contract.compatibility.lenient_documents import read_leniently
from contract.task_spec import TaskSpec
from service.web.views.formats import value_of


def in_order(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec as a document in its fields' order, without the nulls of fields that keep their defaults; what this version
    cannot read, as it is stored."""
    try:
        read = read_leniently(TaskSpec, spec)
    except ValueError:
        return dict(spec)
    whole: dict[str, Any] = _without_nulls(read, read.model_dump(mode="json", warnings="none"))
    return whole


def _without_nulls(value: Any, dumped: Any) -> Any:
    """Of models alone: a null inside a JSON Schema is a value. Fields of a newer version stand last, as they are."""
    if isinstance(value, BaseModel):
        known = {name: _without_nulls(getattr(value, name), said) for name, said in dumped.items()}
        return {name: said for name, said in known.items() if said is not None} | (value.model_extra or {})
    if isinstance(value, list | tuple):
        return [_without_nulls(one, said) for one, said in zip(value, dumped, strict=True)]
    return dumped


def differences(specs: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """The fields in which they differ, as dotted paths, with each spec's value."""
    flat = [dict(_flat(spec, "")) for spec in specs]
    paths = sorted({path for one in flat for path in one})
    rows = [(path, [value_of(one.get(path)) for one in flat]) for path in paths]
    return [(path, values) for path, values in rows if len(set(values)) > 1]


def _flat(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [found for name, inner in value.items() for found in _flat(inner, f"{path}.{name}" if path else str(name))]
    return [(path, value)]
