"""JSON Schemas: references, patterns and unique items are checked; hostile schemas and texts hold nobody up."""

import sys
from typing import Any

import pytest

from tests.worker.metrics.scored import score, scored, unchecked


def doubled(links: int, **more: Any) -> dict[str, Any]:
    parts = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(links)} | {f"d{links}": {}}
    return more | {"$ref": "#/$defs/d0", "$defs": parts}


# Read, and too deep to be compared: a comprehension was a frame of its own before Python 3.12.
DEEP = 900 if sys.version_info < (3, 12) else 5000
CHAIN = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(900)} | {"d900": {}}
MANY = "[" + ",".join("1" for _ in range(4000)) + "]"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"multipleOf": 0.5}, "1" * 400),
        ({"multipleOf": 0.5}, "1e400"),
        ({"multipleOf": 0.5}, "NaN"),
        ({"multipleOf": 2}, "Infinity"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$id": "http://[bad", "$ref": "#/$defs/b"}}}, "1"),
        ({"required": ["a"], "$ref": "#/required"}, "1"),
        ({"x": 5, "$ref": "#/x"}, "1"),
        ({"x": {"type": 7}, "$ref": "#/x"}, "1"),
        ({"x": {"type": "text"}, "$ref": "#/x"}, "1"),
        ({"x": {"multipleOf": 0}, "$ref": "#/x"}, "1"),
        ({"x": {"minimum": "a"}, "$ref": "#/x"}, "1"),
        ({"x": {"items": 5}, "$ref": "#/x"}, "[1]"),
        ({"x": {"properties": [1]}, "$ref": "#/x"}, '{"a": 1}'),
        ({"$ref": "#/$defs/d0", "$defs": CHAIN}, "1"),
        ({"$ref": "#"}, "1"),
        ({"$ref": "http://localhost:1/x"}, "1"),
        ({"pattern": "("}, '"a"'),
        ({"pattern": "(a|aa)+$"}, '"' + "a" * 5000 + 'b"'),
        (doubled(40), "1"),
        (doubled(40, unevaluatedProperties=False), '{"a": 1}'),
        (doubled(40, unevaluatedItems=False), "[1]"),
        ({"anyOf": [{"items": {"anyOf": [{"type": "string"}] * 500}}] * 20}, MANY),
        ({"items": {"enum": [f"{n}" for n in range(5000)]}}, "[" + ",".join(f'"{n}"' for n in range(4999, 0, -1)) + "]"),
        ({"uniqueItems": True, "items": {"uniqueItems": True}}, "[" * DEEP + "]" * DEEP),
    ],
)
def test_a_hostile_schema_or_text_counts_as_0_and_holds_nobody_up(schema: dict[str, Any], text: str) -> None:
    """Ends by the pytest timeout where it does not."""
    made = scored(unchecked(schema), pairs=[(text, "")] * 3)
    assert made.scores == {"json_schema": [0.0] * 3}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[" + ",".join(f'{{"a": {n}}}' for n in range(4000)) + "]", 1),
        ("[" + ",".join(f'{{"a": {n % 3999}}}' for n in range(4000)) + "]", 0),
        ('[1, true, "1", [1], {"a": 1}, 1.5, null]', 1),
        ("[1, 1.0]", 0),
        ('[{"a": 1, "b": [2.0]}, {"b": [2], "a": 1}]', 0),
        ("[false, 0]", 1),
        ("[1e400, 1]", 1),
    ],
)
def test_unique_items_are_told_apart_in_linear_time(text: str, expected: int) -> None:
    assert score({"type": "json_schema", "json_schema": {"uniqueItems": True}}, text) == expected


def test_references_and_patterns_of_fine_schemas_are_followed() -> None:
    fine = {"$ref": "#/$defs/x", "$id": "https://example.com/s", "$defs": {"x": {"type": "string", "pattern": "^a+$"}}}
    assert score({"type": "json_schema", "json_schema": fine}, '"aaa"') == 1
    assert score({"type": "json_schema", "json_schema": fine}, '"ab"') == 0
    assert scored(unchecked(fine | {"$id": "http://[bad"}), pairs=[('"aaa"', "")]).scores == {"json_schema": [1.0]}
    tree = {"$ref": "#/$defs/t", "$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}
    assert score({"type": "json_schema", "json_schema": tree}, "[[], [[]]]") == 1
    assert score({"type": "json_schema", "json_schema": tree}, "[[], [[1]]]") == 0
