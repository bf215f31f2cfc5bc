"""Text metrics: right, wrong and hostile texts (which pytest's timeout ends); ROUGE-L against the textbook recurrence."""

from collections import Counter
from statistics import fmean
from time import thread_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from contract.evaluation.text_evaluation import JsonSchema, Regex, TextMetric
from worker.metrics import scoring
from worker.metrics.score_errors import MetricError
from worker.metrics.scoring import MOST_COSTLY, Scoring
from worker.metrics.similarity import bleu, chrf, fuzzy_match, rouge_l, rouge_n
from worker.metrics.text_metrics import scorer

METRIC: TypeAdapter[Any] = TypeAdapter(TextMetric)
NESTED = "[" * 100_000


def score(metric: dict[str, Any], text: str, reference: str = "") -> float:
    return scorer(METRIC.validate_python(metric), thread_time)(text, reference)


def check(operation: str, **more: str) -> dict[str, str]:
    return {"type": "string_check", "operation": operation, **more}


def like(measure: str, **more: str) -> dict[str, str]:
    return {"type": "text_similarity", "evaluation_metric": measure, **more}


def scored(*metrics: Any, pairs: list[tuple[str, str]]) -> Scoring:
    """In slices of one text each."""
    made = Scoring([METRIC.validate_python(one) if isinstance(one, dict) else one for one in metrics], pairs, thread_time)
    while not made.done:
        made.advance(0)
    return made


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
        ({"type": "json_valid"}, "NaN", "", 0),
        ({"type": "json_valid"}, "[-Infinity]", "", 0),
        ({"type": "rouge_l"}, "The cat, sat!", "the cat sat", 1),
        ({"type": "rouge_l"}, "police kill the gunman", "police killed the gunman", 0.75),
        ({"type": "rouge_l"}, "", "a", 0),
        ({"type": "rouge_l"}, "Москва", "москва!", 1),
        ({"type": "rouge_l"}, "le café d'à côté", "le café de côté", 2 * 3 / 9),
        ({"type": "rouge_l"}, "हिन्दी भाषा", "हिन्दी", 2 / 3),
        ({"type": "rouge_l"}, "«…» — ½", "«…» — ½", 0),
        ({"type": "bleu"}, "the cat sat on a mat", "the cat sat on the mat", (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25),
        ({"type": "bleu"}, "the cat sat on the mat.", "the cat sat on the mat.", 1),
        ({"type": "bleu"}, "", "a", 0),
        ({"type": "bleu"}, "a", "", 0),
        ({"type": "chrf"}, "die Katze saß", "die Katze saß", 1),
        ({"type": "chrf"}, "猫は座った", "猫は座った", 1),
        ({"type": "chrf"}, "", "a", 0),
        ({"type": "chrf"}, "a", "", 0),
        (check("eq"), " Paris\n", "Paris", 1),
        (check("eq"), "paris", "Paris", 0),
        (check("ne"), "paris", " Paris", 1),
        (check("ne"), "Paris ", " Paris", 0),
        (check("like"), "It is Paris", "Paris", 1),
        (check("like"), "It is paris", "Paris", 0),
        (check("ilike"), "STRASSE 7", "straße", 1),
        (check("ilike"), "Rom", "Paris", 0),
        (check("eq", reference="Answer: {{ item.completion }}"), "Answer: 4", "4", 1),
        (check("eq", reference="Answer: {{ item.completion }}"), "4", "4", 0),
        (check("like", input="{{item.completion}}", reference="{{sample.output_text}}"), "Par", "Paris", 1),
        (check("eq", reference="4"), "4", "5", 1),
        (check("eq"), "{{item.completion}}", "4", 0),  # what a model writes is no template
        (check("eq", input="[{{sample.output_text}}]", reference="[{{item.completion}}]"), "{{x}}", "{{x}}", 1),
        (like("rouge_1"), "The cat, sat!", "sat the cat", 1),
        (like("rouge_1"), "the the the cat", "the cat", 2 * 2 / 6),
        (like("rouge_2"), "police kill the gunman", "police killed the gunman", 2 * 1 / 6),
        (like("rouge_5"), "a b c d", "a b c d", 0),  # shorter than a run
        (like("rouge_5"), "a b c d e", "a b c d e", 1),
        (like("rouge_1"), "", "", 0),
        (like("rouge_l"), "police kill the gunman", "police killed the gunman", 0.75),
        (like("fuzzy_match"), "kitten", "sitting", 1 - 5 / 13),  # s, k; i, e; g
        (like("fuzzy_match"), "Rome", "rome", 1 - 2 / 8),
        (like("fuzzy_match"), "", "", 1),
        (like("fuzzy_match"), "", "4", 0),
        (like("bleu"), "the cat sat on a mat", "the cat sat on the mat", (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25),
        (like("rouge_1", reference="one {{item.completion}}"), "one two", "two", 1),
    ],
)
def test_a_text_is_scored(metric: dict[str, Any], text: str, reference: str, expected: float) -> None:
    assert score(metric, text, reference) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "reference", "unigrams", "bigrams", "longest"),
    [
        (
            "The Phoenix is a pub near Crowne Plaza Hotel.",
            "The Phoenix pub is located close to the Crowne Plaza Hotel, and serves food.",
            *(0.608696, 0.285714, 0.521739),
        ),
        (
            "It's a well-known U.S. bar_stool: 3.5 of 5!",
            "The well known US bar stool has 3.5 of 5 stars.",
            0.64,
            0.434783,
            0.64,
        ),
        ("snake_case names are two words", "snake case names are two words", 1, 1, 1),
        ("Don\u2019t stop—go on", "dont stop go on", 0.666667, 0.571429, 0.666667),
    ],
)
def test_of_english_texts_rouge_is_that_of_googles_package(
    text: str, reference: str, unigrams: float, bigrams: float, longest: float
) -> None:
    """Stored values of rouge_score 0.1.2, without its stemmer."""
    found = (rouge_n(1, text, reference), rouge_n(2, text, reference), rouge_l(text, reference))
    assert found == pytest.approx((unigrams, bigrams, longest), abs=1e-6)


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abcd"), max_size=12))
def test_rouge_l_is_the_f_measure_of_the_textbook_recurrence(left: list[str], right: list[str]) -> None:
    table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
    common = table[-1][-1]
    expected = 2 * common / (len(left) + len(right)) if left and right else 0.0
    assert rouge_l(" ".join(left), " ".join(right)) == pytest.approx(expected)


def chrf_of_the_paper(text: str, reference: str) -> float:
    """Mean precision and mean recall of n-grams up to 6 of characters without spaces, over the orders that both texts have."""
    ours, wanted = ("".join(part.split()) for part in (text, reference))
    precisions, recalls = [], []
    for order in range(1, 1 + min(6, len(ours), len(wanted))):
        left, right = (Counter(part[at : at + order] for at in range(len(part) - order + 1)) for part in (ours, wanted))
        matches = (left & right).total()
        precisions.append(matches / left.total())
        recalls.append(matches / right.total())
    if not any(precisions):
        return 0.0
    precision, recall = fmean(precisions), fmean(recalls)
    return 5 * precision * recall / (4 * precision + recall)


@given(st.text("ab c", max_size=12), st.text("ab c", max_size=12))
def test_chrf_is_the_f_score_of_the_papers_definition(text: str, reference: str) -> None:
    assert chrf(text, reference) == pytest.approx(chrf_of_the_paper(text, reference))


@given(st.text(max_size=40), st.text(max_size=40))
def test_similarities_of_any_texts_are_from_0_to_1(text: str, reference: str) -> None:
    for score in (bleu, chrf, fuzzy_match, rouge_l):
        assert 0 <= score(text, reference) <= 1


@pytest.mark.parametrize("metric", [{"type": "bleu"}, {"type": "chrf"}, like("fuzzy_match"), {"type": "rouge_l"}])
@pytest.mark.parametrize("text", ["a" * 1_000_000, "(" * 1_000_000, "1," * 500_000, "&lt;" * 250_000, "a " * 500_000])
def test_similarities_of_endless_texts_hold_nobody_up(metric: dict[str, Any], text: str) -> None:
    assert score(metric, text, text) in (0, pytest.approx(1))


BACKTRACKS = {"type": "regex", "pattern": "(a|aa)+$"}
SLOW = "a" * 5000 + "b"


def test_a_hostile_expression_counts_as_0_and_the_report_says_so() -> None:
    made = scored(BACKTRACKS, pairs=[(SLOW, ""), ("aaa", "aaa")])
    assert made.scores == {"regex": [0.0, 1.0]}
    assert made.notes == ["metric 'regex': 1 of 2 texts could not be scored (too long a time) and count as 0"]


def test_an_expression_that_keeps_timing_out_is_given_up_and_the_others_are_not() -> None:
    made = scored(BACKTRACKS, {"type": "contains"}, pairs=[(SLOW, "b")] * 500)
    assert made.scores == {"contains": [1.0] * 500}
    (note,) = made.notes
    assert note.startswith(f"metric 'regex' has no result: {MOST_COSTLY} of the first {MOST_COSTLY} took too long of 500 texts")


def test_a_metric_whose_time_is_up_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "SCORING_SECONDS", 1e-9)
    made = scored({"type": "exact_match"}, pairs=[("a", "a")] * 9)
    assert made.scores == {}
    assert made.notes[0].startswith("metric 'exact_match' has no result: time was up after 1 of 9 texts")


def unchecked(schema: dict[str, Any]) -> JsonSchema:
    """A schema that the contract refuses: the worker must outlive it all the same."""
    return JsonSchema.model_construct(type="json_schema", name=None, json_schema=schema)


def doubled(links: int, **more: Any) -> dict[str, Any]:
    parts = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(links)} | {f"d{links}": {}}
    return more | {"$ref": "#/$defs/d0", "$defs": parts}


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
        ({"pattern": "(a|aa)+$"}, f'"{SLOW}"'),
        (doubled(40), "1"),
        (doubled(40, unevaluatedProperties=False), '{"a": 1}'),
        (doubled(40, unevaluatedItems=False), "[1]"),
        ({"anyOf": [{"items": {"anyOf": [{"type": "string"}] * 500}}] * 20}, MANY),
        ({"items": {"enum": [f"{n}" for n in range(5000)]}}, "[" + ",".join(f'"{n}"' for n in range(4999, 0, -1)) + "]"),
        ({"uniqueItems": True, "items": {"uniqueItems": True}}, "[" * 900 + "]" * 900),
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


@pytest.mark.parametrize("pattern", ["[[:x:]]", "(?:a){1<=e<=99999999999999999999}", "a{99999999999999999999}"])
def test_a_pattern_that_this_engine_does_not_know_fails_its_metric_alone(pattern: str) -> None:
    """A contract of another version may let one pass: whatever the engine raises must not end the executor."""
    with pytest.raises(MetricError, match="metric 'shape': the pattern is no regular expression"):
        Scoring([Regex.model_construct(type="regex", name="shape", pattern=pattern)], [], thread_time)
    made = scored(unchecked({"pattern": pattern}), pairs=[('"aaa"', "")])
    assert made.scores == {"json_schema": [0.0]}
    assert "1 of 1 texts could not be scored" in made.notes[0]


def test_scores_are_of_all_pairs_by_name() -> None:
    found = scored({"type": "exact_match"}, {"type": "contains", "name": "in"}, pairs=[("a", "a"), ("ab", "a"), ("c", "a")])
    assert found.scores == {"exact_match": [1.0, 0.0, 0.0], "in": [1.0, 1.0, 0.0]}
    assert found.notes == []
