"""Which JSON Schemas texts are checked against: JSON Schema 2020-12, with references within the schema alone, and without
keywords of unbounded cost. Pure; an error names the place in the schema, as a JSON pointer.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from contract.evaluation.expression_rules import pattern_fault

MOST_CHARACTERS = 32768
MOST_LEVELS = 64  # of nesting, and of references one after another
MOST_CHECKS = 10_000  # of one value, references followed

_REFUSED = {
    "patternProperties": "name the properties, or use additionalProperties",
    "unevaluatedProperties": "use additionalProperties",
    "unevaluatedItems": "use items after prefixItems",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
}
_ONE = ("items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames")
_NAMED = ("properties", "dependentSchemas", "$defs", "definitions")
_LISTED = ("allOf", "anyOf", "oneOf", "prefixItems")
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")


def checked(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema. Raises ValueError that says what cannot be checked, and where."""
    _bounded(schema)
    places = dict(_subschemas(schema))
    targets = {f"#{place}": place for place in places}
    targets |= {f"#{part['$anchor']}": place for place, part in places.items() if isinstance(part, dict) and "$anchor" in part}
    for place, part in places.items():
        if isinstance(part, dict):
            _check_part(place, part, targets)
    _check_references(places, targets)
    return schema


def _bounded(schema: dict[str, Any]) -> None:
    """Level by level: recursion would fail at a depth that depends on the caller's."""
    level: list[Any] = [schema]
    for _ in range(MOST_LEVELS):
        level = [inner for node in level for inner in (node.values() if isinstance(node, dict) else node)]
        level = [node for node in level if isinstance(node, dict | list)]
        if not level:
            break
    else:
        raise ValueError(f"is nested deeper than {MOST_LEVELS} levels")
    if len(json.dumps(schema, allow_nan=False)) > MOST_CHARACTERS:
        raise ValueError(f"is longer than {MOST_CHARACTERS} characters")


def _subschemas(schema: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The schema and all in it, by JSON pointer. Raises ValueError where something else stands in a schema's place."""
    if not isinstance(schema, dict | bool):
        raise ValueError(f"has at #{place} a {_kind(schema)}, where a schema (an object, true or false) belongs")
    yield place, schema
    for key, value in schema.items() if isinstance(schema, dict) else ():
        if key in _ONE:
            yield from _subschemas(value, f"{place}/{key}")
        elif key in _NAMED:
            _require(isinstance(value, dict), place, key, "an object of schemas")
            for name, inner in value.items():
                yield from _subschemas(inner, f"{place}/{key}/{_escaped(name)}")
        elif key in _LISTED:
            _require(isinstance(value, list) and value, place, key, "a list of schemas")
            for number, inner in enumerate(value):
                yield from _subschemas(inner, f"{place}/{key}/{number}")


def _check_part(place: str, part: dict[str, Any], targets: dict[str, str]) -> None:
    for key, value in part.items():
        if key in _REFUSED:
            raise ValueError(f"uses '{key}' at #{place}, whose cost cannot be bounded; {_REFUSED[key]}")
        if key in _VALUES:
            holds, what = _VALUES[key]
            _require(holds(value), place, key, what)
        if key == "pattern" and (fault := pattern_fault(value)) is not None:
            raise ValueError(f"has at #{place} a 'pattern' that {fault}")
        if key == "$id" and place:
            raise ValueError(f"has an '$id' at #{place}; only the whole schema may have one")
        if key == "$ref" and unquote(value) not in targets:
            raise ValueError(
                f"refers at #{place} to {value[:200]!r}, where it has no schema; a '$ref' names one within this schema, "
                "such as '#/$defs/address'"
            )


def _check_references(places: dict[str, Any], targets: dict[str, str]) -> None:
    """One value is checked by a schema, by those that it combines, and by those that these refer to."""
    checks: dict[str, int] = {}

    def count(place: str, level: int) -> int:
        if place not in checks:
            if level > MOST_LEVELS:
                raise ValueError(f"refers in a circle, or through more than {MOST_LEVELS} references, from #{place}")
            checks[place] = 1 + sum(count(inner, level + 1) for inner in _combined(place, places[place], targets))
        if checks[place] > MOST_CHECKS:
            raise ValueError(f"checks one value more than {MOST_CHECKS} times, from #{place}; refer to fewer schemas")
        return checks[place]

    for place in places:
        count(place, 0)


def _combined(place: str, part: Any, targets: dict[str, str]) -> Iterator[str]:
    """The schemas that check the same value as this one."""
    for key, value in part.items() if isinstance(part, dict) else ():
        if key == "$ref":
            yield targets[unquote(value)]
        elif key in ("not", "if", "then", "else"):
            yield f"{place}/{key}"
        elif key in ("allOf", "anyOf", "oneOf"):
            yield from (f"{place}/{key}/{number}" for number in range(len(value)))
        elif key == "dependentSchemas":
            yield from (f"{place}/{key}/{_escaped(name)}" for name in value)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _require(holds: object, place: str, key: str, what: str) -> None:
    if not holds:
        raise ValueError(f"has at #{place} a '{key}' that is not {what}")


def _kind(value: object) -> str:
    names = {str: "text", list: "list", type(None): "null"}
    return names.get(type(value), "number")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == value // 1


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _are_types(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return _are_texts(names) and bool(names) and all(name in _TYPES for name in names)


_NUMBER, _COUNT = (_is_number, "a number"), (_is_count, "a whole number of at least 0")
_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "$ref": (lambda value: isinstance(value, str), "a text"),
    "$anchor": (lambda value: isinstance(value, str), "a text"),
    "type": (_are_types, f"one of {', '.join(_TYPES)}, or a list of them"),
    "enum": (lambda value: isinstance(value, list), "a list"),
    "required": (_are_texts, "a list of texts"),
    "dependentRequired": (
        lambda value: isinstance(value, dict) and all(map(_are_texts, value.values())),
        "an object of lists of texts",
    ),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "pattern": (lambda value: isinstance(value, str), "a text"),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _COUNT),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), _COUNT),
}
