"""The metrics of a task's evaluation as functions of (text, reference), each from 0 to 1.

A tenant's regular expression or JSON schema may take exponential time, and an executor is shared: a search that takes longer
than REGEX_SECONDS scores 0, as do all of an expression's after MOST_TIMEOUTS of them, and a document that takes more than
MOST_REFERENCES references is not valid. A JSON schema cannot make the worker fetch anything.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

import jsonschema
import referencing
import regex

from contract.text_evaluation import Contains, ExactMatch, JsonSchema, JsonValid, Number, Regex, RougeL, TextMetric, named

Score = Callable[[str, str], float]  # of a text and its reference

REGEX_SECONDS, MOST_TIMEOUTS = 0.05, 5  # of a search; of an expression over all texts of an evaluation
MOST_REFERENCES = 10_000  # resolved for one document
MOST_WORDS = 4000  # of a text or a reference under ROUGE-L, whose time grows with their product
_NUMBER = regex.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
_WORDS = regex.compile(r"[a-z0-9]+")


class MetricError(ValueError):
    """A metric that cannot be computed at all; the message names it."""


def scorers(metrics: Sequence[TextMetric]) -> dict[str, Score]:
    """A function for each metric, by the metric's name. Raises MetricError."""
    return {named(metric): _scorer(metric) for metric in metrics}


def prompt_scores(functions: dict[str, Score], pairs: Sequence[tuple[str, str]]) -> dict[str, list[float]]:
    """Each metric of each (text, reference) pair."""
    return {name: [score(*pair) for pair in pairs] for name, score in functions.items()}


def _scorer(metric: TextMetric) -> Score:
    match metric:
        case ExactMatch(ignore_case=folded):
            return lambda text, reference: float(_plain(text, folded) == _plain(reference, folded))
        case Contains(ignore_case=folded):
            return lambda text, reference: float(_plain(reference, folded) in _plain(text, folded))
        case Regex(pattern=pattern):
            return _Expression(_compiled(named(metric), pattern))
        case Number(marker=marker):
            return partial(_number, marker)
        case JsonValid():
            return lambda text, reference: float(_document(text) is not None)
        case JsonSchema(json_schema=schema):
            return _Schema(named(metric), schema)
        case RougeL():
            return rouge_l


def _plain(text: str, folded: bool) -> str:
    return text.strip().casefold() if folded else text.strip()


def _compiled(name: str, pattern: str) -> "regex.Pattern[str]":
    try:
        return regex.compile(pattern)
    except regex.error as error:
        raise MetricError(f"metric '{name}': the pattern is no regular expression: {error}") from None


class _Expression:
    def __init__(self, pattern: "regex.Pattern[str]") -> None:
        self._pattern, self._timeouts = pattern, 0

    def __call__(self, text: str, reference: str) -> float:
        try:
            found = self._search(text)
            if found is None or not self._pattern.groups:
                return float(found is not None)
            wanted = self._search(reference)
        except TimeoutError:
            self._timeouts += 1
            return 0.0
        return float(wanted is not None and found.groups() == wanted.groups())

    def _search(self, text: str) -> "regex.Match[str] | None":
        if self._timeouts >= MOST_TIMEOUTS:
            raise TimeoutError
        return self._pattern.search(text, timeout=REGEX_SECONDS)


def _number(marker: str, text: str, reference: str) -> float:
    wanted = _first_number(reference.rpartition(marker)[2])
    _, marked, after = text.rpartition(marker)
    return float(bool(marked) and wanted is not None and _first_number(after) == wanted)


def _first_number(text: str) -> Decimal | None:
    found = _NUMBER.search(text)
    try:
        return None if found is None else Decimal(found[0].replace(",", ""))
    except InvalidOperation:
        return None


def _document(text: str) -> tuple[object] | None:
    """The JSON document, in a tuple; None where the text is none."""
    try:
        return (json.loads(text),)
    except (ValueError, RecursionError):
        return None


class _TooCostly(Exception):
    """A document that takes too many references or too long a search."""


class _Schema:
    """A validator whose references are counted and whose patterns are searched for within REGEX_SECONDS."""

    def __init__(self, name: str, schema: dict[str, Any]) -> None:
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise MetricError(f"metric '{name}': json_schema is no JSON Schema: {error.message}") from None
        self._references = 0
        self._plain_ref = jsonschema.Draft202012Validator.VALIDATORS["$ref"]
        kind = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"$ref": self._ref, "pattern": self._pattern})
        self._validator = kind(schema, registry=referencing.Registry())

    def __call__(self, text: str, reference: str) -> float:
        document, self._references = _document(text), 0
        try:
            return float(document is not None and self._validator.is_valid(document[0]))
        except (referencing.exceptions.Unresolvable, RecursionError, _TooCostly):
            return 0.0

    def _ref(self, validator: Any, ref: str, instance: Any, schema: Any) -> Iterator[Any]:
        self._references += 1
        if self._references > MOST_REFERENCES:
            raise _TooCostly
        yield from self._plain_ref(validator, ref, instance, schema) or ()

    def _pattern(self, validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
        if not isinstance(instance, str):
            return
        try:
            found = regex.search(pattern, instance, timeout=REGEX_SECONDS)
        except (TimeoutError, regex.error):
            raise _TooCostly from None
        if found is None:
            yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def rouge_l(text: str, reference: str) -> float:
    """F1 of the longest common subsequence of words (Lin 2004, section 3.1): runs of letters and digits, lower case."""
    ours, wanted = (_WORDS.findall(part.lower())[:MOST_WORDS] for part in (text, reference))
    if not ours or not wanted:
        return 0.0
    common = _longest_common(ours, wanted)
    return 2 * common / (len(ours) + len(wanted))


def _longest_common(left: Sequence[str], right: Sequence[str]) -> int:
    """Length of the longest common subsequence, in bits of one number a row (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for at, word in enumerate(left):
        places[word] = places.get(word, 0) | 1 << at
    full = (1 << len(left)) - 1
    row = full
    for word in right:
        matches = places.get(word, 0)
        both = row & matches
        row = (row + both | row - both) & full
    return len(left) - row.bit_count()
