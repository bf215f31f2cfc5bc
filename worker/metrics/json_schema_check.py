"""Whether a text is a JSON document that a tenant's schema allows, within SCHEMA_SECONDS.

Neither schema nor text can hold up or end the executor that tenants share: the time is looked at before each keyword, patterns
are searched for with a timeout, arrays are compared in linear time, nothing is fetched, and errors that a hostile pair raises
are named here.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jsonschema
import referencing
import regex

from worker.metrics.json_document import document
from worker.metrics.score_errors import TooCostly, Unscorable
from worker.metrics.text_metrics import ENGINE_FAULTS, Clock

SCHEMA_SECONDS, PATTERN_SECONDS = 0.2, 0.05  # of one text; of one search in it
# Errors that a wrong schema or a hostile text raises in the validator, besides those of references and patterns.
SCHEMA_FAULTS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_LIBRARY_FAULTS = (jsonschema.exceptions.UnknownType, referencing.exceptions.Unresolvable, *ENGINE_FAULTS)

Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


class SchemaCheck:
    """Scores a text 1 where the schema allows it. Raises TooCostly, or Unscorable where the validator fails."""

    def __init__(self, schema: Mapping[str, Any], clock: Clock) -> None:
        self._clock, self._ends = clock, 0.0
        plain: Mapping[str, Keyword] = jsonschema.Draft202012Validator.VALIDATORS
        keywords = dict(plain) | {"pattern": _pattern, "uniqueItems": _unique_items}
        timed = {name: self._timed(keyword) for name, keyword in keywords.items()}
        # References are within the schema, whatever it calls itself.
        local = {key: value for key, value in schema.items() if key != "$id"}
        self._validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, timed)(
            local, registry=referencing.Registry()
        )

    def __call__(self, text: str, reference: str) -> float:
        found = document(text)
        if found is None:
            return 0.0
        self._ends = self._clock() + SCHEMA_SECONDS
        try:
            return float(self._validator.is_valid(found[0]))
        except (*SCHEMA_FAULTS, *_LIBRARY_FAULTS) as error:
            raise Unscorable(type(error).__name__) from None

    def _timed(self, keyword: Keyword) -> Keyword:
        def within(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
            if self._clock() > self._ends:
                raise TooCostly
            return keyword(validator, value, instance, schema)

        return within


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, str):
        return
    try:
        found = regex.search(pattern, instance, timeout=PATTERN_SECONDS)
    except TimeoutError:
        raise TooCostly from None
    if found is None:
        yield jsonschema.ValidationError("the pattern is not found")


def _unique_items(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[Any]:
    """By the items' canonical texts: the library compares all pairs of items that cannot be ordered."""
    if wanted and isinstance(instance, list) and len({_canonical(item) for item in instance}) < len(instance):
        yield jsonschema.ValidationError("there are equal items")


def _canonical(item: object) -> str:
    return json.dumps(_whole(item), sort_keys=True)


def _whole(item: object) -> object:
    """Numbers of one value in one form: 1.0 equals 1."""
    match item:
        case float() if item.is_integer():
            return int(item)
        case list():
            return [_whole(inner) for inner in item]
        case dict():
            return {key: _whole(inner) for key, inner in item.items()}
    return item
