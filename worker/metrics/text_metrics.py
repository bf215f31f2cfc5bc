"""The metrics of a task's evaluation as functions of (text, reference), each from 0 to 1, in bounded time for any text.

JSON Schemas and similarities are loaded when a task first asks for one: jsonschema takes a second where its optional checks of
formats are installed, and few executors need it.
"""

import pkgutil
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from functools import partial

import regex

from contract.evaluation.grader_templates import rendered
from contract.evaluation.text_evaluation import (
    Bleu,
    Chrf,
    ComputedMetric,
    Contains,
    ExactMatch,
    JsonSchema,
    JsonValid,
    Number,
    Regex,
    RougeL,
    StringCheck,
    TextSimilarity,
    named,
)
from worker.metrics.json_document import document
from worker.metrics.score_errors import MetricError, TooCostly, Unscorable

Score = Callable[[str, str], float]  # of a text and its reference
Clock = Callable[[], float]  # in seconds

_SCHEMA_CHECK, _SIMILARITY = "worker.metrics.json_schema_check:SchemaCheck", "worker.metrics.similarity:"

REGEX_SECONDS = 0.05  # of a search, which may take exponential time
ENGINE_FAULTS = (regex.error, RuntimeError, OverflowError, MemoryError)  # that it raises for a pattern that `re` takes
_NUMBER = regex.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")


def scorer(metric: ComputedMetric, clock: Clock) -> Score:
    """The metric's function, which raises Unscorable for a text that has no score. clock: of the thread's time. Raises
    MetricError."""
    match metric:
        case ExactMatch(ignore_case=folded):
            return lambda text, reference: float(_plain(text, folded) == _plain(reference, folded))
        case Contains(ignore_case=folded):
            return lambda text, reference: float(_plain(reference, folded) in _plain(text, folded))
        case Regex(pattern=pattern):
            return partial(_expression, _compiled(named(metric), pattern))
        case Number(marker=marker):
            return partial(_number, marker)
        case JsonValid():
            return lambda text, reference: float(document(text) is not None)
        case JsonSchema(json_schema=schema):
            check: Score = pkgutil.resolve_name(_SCHEMA_CHECK)(schema, clock)
            return check
        case RougeL():
            return _similarity("rouge_l")
        case Bleu():
            return _similarity("bleu")
        case Chrf():
            return _similarity("chrf")
        case StringCheck(operation=operation):
            return partial(_graded, metric, _CHECKS[operation])
        case TextSimilarity(evaluation_metric=measure):
            return partial(_graded, metric, _similarity(measure))


def _graded(grader: StringCheck | TextSimilarity, score: Score, text: str, reference: str) -> float:
    """The score of the grader's input against its reference, which are templates."""
    return score(*(rendered(each, text, reference).strip() for each in (grader.input, grader.reference)))


_CHECKS: Mapping[str, Score] = {
    "eq": lambda text, reference: float(text == reference),
    "ne": lambda text, reference: float(text != reference),
    "like": lambda text, reference: float(reference in text),
    "ilike": lambda text, reference: float(reference.casefold() in text.casefold()),
}


def _similarity(measure: str) -> Score:
    """`rouge_1` to `rouge_5`, or a function of that module by its name."""
    name, _, words = measure.rpartition("_")
    if words.isdecimal():
        return partial(pkgutil.resolve_name(f"{_SIMILARITY}{name}_n"), int(words))
    found: Score = pkgutil.resolve_name(_SIMILARITY + measure)
    return found


def _plain(text: str, folded: bool) -> str:
    return text.strip().casefold() if folded else text.strip()


def _compiled(name: str, pattern: str) -> "regex.Pattern[str]":
    try:
        return regex.compile(pattern)
    except ENGINE_FAULTS as error:
        raise MetricError(f"metric '{name}': the pattern is no regular expression: {error}") from None


def _expression(pattern: "regex.Pattern[str]", text: str, reference: str) -> float:
    try:
        found = pattern.search(text, timeout=REGEX_SECONDS)
        if found is None or not pattern.groups:
            return float(found is not None)
        wanted = pattern.search(reference, timeout=REGEX_SECONDS)
    except TimeoutError:
        raise TooCostly from None
    except ENGINE_FAULTS as error:
        raise Unscorable(type(error).__name__) from None
    return float(wanted is not None and found.groups() == wanted.groups())


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
