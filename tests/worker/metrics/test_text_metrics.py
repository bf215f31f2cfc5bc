"""Text metrics: right, wrong and hostile texts, which pytest's timeout ends."""

from time import thread_time
from typing import Any

import pytest

from contract.evaluation.text_evaluation import Regex
from tests.worker.metrics.scored import like, score, scored, unchecked
from worker.metrics import scoring
from worker.metrics.score_errors import MetricError
from worker.metrics.scoring import MOST_COSTLY, Scoring

NESTED = "[" * 100_000


def check(operation: str, **more: str) -> dict[str, str]:
    return {"type": "string_check", "operation": operation, **more}


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
