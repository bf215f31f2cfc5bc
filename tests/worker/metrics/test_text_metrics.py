"""Text metrics: right, wrong and hostile texts (which pytest's timeout ends); ROUGE-L against the textbook recurrence."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from contract.text_evaluation import TextMetric
from worker.metrics.text_metrics import MetricError, prompt_scores, rouge_l, scorers

METRIC: TypeAdapter[Any] = TypeAdapter(TextMetric)
NESTED = "[" * 100_000


def score(metric: dict[str, Any], text: str, reference: str = "") -> float:
    (function,) = scorers([METRIC.validate_python(metric)]).values()
    return function(text, reference)


@pytest.mark.parametrize(
    ("metric", "text", "reference", "expected"),
    [
        ({"type": "exact_match"}, " Paris\n", "Paris", 1),
        ({"type": "exact_match"}, "paris", "Paris", 0),
        ({"type": "exact_match", "ignore_case": True}, "PARIS", "Paris", 1),
        ({"type": "contains"}, "It is Paris, of course", " Paris ", 1),
        ({"type": "contains"}, "It is paris", "Paris", 0),
        ({"type": "contains", "ignore_case": True}, "STRASSE", "straße", 1),
        ({"type": "regex", "pattern": r"\d{3}"}, "call 911", "anything", 1),
        ({"type": "regex", "pattern": r"\d{3}"}, "call 91", "123", 0),
        ({"type": "regex", "pattern": r"answer: (\w+)"}, "the answer: B", "answer: B", 1),
        ({"type": "regex", "pattern": r"answer: (\w+)"}, "the answer: C", "answer: B", 0),
        ({"type": "regex", "pattern": r"answer: (\w+)"}, "the answer: B", "B", 0),
        ({"type": "number"}, "so 3+4 = 7\n#### 7", "... #### 7", 1),
        ({"type": "number"}, "#### 6 no, #### $1,234.50 in all", "#### 1234.5", 1),
        ({"type": "number"}, "it is 7", "#### 7", 0),
        ({"type": "number"}, "#### seven", "#### 7", 0),
        ({"type": "number"}, "#### -7", "-7", 1),
        ({"type": "number"}, "#### 7", "seven", 0),
        ({"type": "number", "marker": "Answer:"}, "Answer: .5", "0.50", 1),
        ({"type": "json_valid"}, ' {"a": [1, null]} ', "", 1),
        ({"type": "json_valid"}, "{'a': 1}", "", 0),
        ({"type": "json_valid"}, NESTED, "", 0),
        ({"type": "json_schema", "json_schema": {"type": "object", "required": ["a"]}}, '{"a": 1}', "", 1),
        ({"type": "json_schema", "json_schema": {"type": "object", "required": ["a"]}}, '{"b": 1}', "", 0),
        ({"type": "json_schema", "json_schema": {"type": "object", "required": ["a"]}}, "no", "", 0),
        ({"type": "json_schema", "json_schema": {"$ref": "http://localhost:1/x"}}, "1", "", 0),
        ({"type": "rouge_l"}, "The cat, sat!", "the cat sat", 1),
        ({"type": "rouge_l"}, "police kill the gunman", "police killed the gunman", 0.75),
        ({"type": "rouge_l"}, "", "a", 0),
    ],
)
def test_a_text_is_scored(metric: dict[str, Any], text: str, reference: str, expected: float) -> None:
    assert score(metric, text, reference) == pytest.approx(expected)


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abcd"), max_size=12))
def test_rouge_l_is_the_f_measure_of_the_textbook_recurrence(left: list[str], right: list[str]) -> None:
    table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
    common = table[-1][-1]
    expected = 2 * common / (len(left) + len(right)) if left and right else 0.0
    assert rouge_l(" ".join(left), " ".join(right)) == pytest.approx(expected)


def test_a_hostile_expression_scores_nothing_and_holds_nobody_up() -> None:
    assert score({"type": "regex", "pattern": "(a|aa)+$"}, "a" * 5000 + "b") == 0


def test_hostile_schemas_score_nothing_and_hold_nobody_up() -> None:
    doubled = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)} | {"d40": {}}
    schemas: list[dict[str, Any]] = [
        {"$ref": "#/$defs/d0", "$defs": doubled},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"pattern": "(a|aa)+$"},
    ]
    for schema in schemas:
        assert score({"type": "json_schema", "json_schema": schema}, '"' + "a" * 5000 + 'b"') == 0
    fine = {"$ref": "#/$defs/x", "$defs": {"x": {"type": "string", "pattern": "^a+$"}}}
    assert score({"type": "json_schema", "json_schema": fine}, '"aaa"') == 1
    assert score({"type": "json_schema", "json_schema": fine}, '"ab"') == 0


def test_an_expression_that_keeps_timing_out_is_given_up_for_all_texts() -> None:
    (function,) = scorers([METRIC.validate_python({"type": "regex", "pattern": "(a|aa)+$"})]).values()
    assert sum(function("a" * 5000 + "b", "") for _ in range(500)) == 0
    assert function("aaa", "") == 0


def test_a_schema_that_is_none_is_refused_by_its_metrics_name() -> None:
    with pytest.raises(MetricError, match="metric 'shape': json_schema is no JSON Schema"):
        scorers([METRIC.validate_python({"type": "json_schema", "name": "shape", "json_schema": {"type": 5}})])


def test_means_are_over_all_pairs_by_name() -> None:
    functions = scorers([METRIC.validate_python(one) for one in ({"type": "exact_match"}, {"type": "contains", "name": "in"})])
    found = prompt_scores(functions, [("a", "a"), ("ab", "a"), ("c", "a"), ("a ", "a")])
    assert found == {"exact_match": [1.0, 0.0, 0.0, 1.0], "in": [1.0, 1.0, 0.0, 1.0]}
