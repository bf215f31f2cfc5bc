"""How several specs differ, field by field. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from service.web.views.formats import value_of


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
