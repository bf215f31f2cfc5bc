"""What a task may ask of its texts, and what is refused by name."""

from typing import Any

import pytest
import regex
from pydantic import ValidationError

from contract.compatibility.capabilities import METRIC_NAMES, needed, understood
from contract.evaluation.text_evaluation import Evaluation
from contract.task_spec import TaskSpec

SPACE = {"learning_rate": [1e-3]}


def spec(**more: Any) -> TaskSpec:
    return TaskSpec.model_validate({"base_model": "b", "dataset": {"file_id": "f"}, "search_space": SPACE, **more})


UNUSABLE = {
    "has more than 10,000 parts": ["[a-z]{999999999}", "((a{100}){100}){2}", "(?:ab){,5001}", r"(\d\d|x){3400,}"],
    "which asks for inexact matches; write '\\{'": ["(?:a){1<=e<=99999999999999999999}", "a{0,5}{e}", "(cat){i<=2,s<=1:[a-z]}"],
    "has '[:' within a set": ["[[:alpha:]]", "[^a[:b]", r"[\]\\[:x]"],
}


@pytest.mark.parametrize(
    "pattern",
    [
        r'{"answer": (\d+)}',
        r"a\{e}",
        "[{e}]",
        "x{3,}",
        r"[\[:x]",
        "(?:ab){1000}",
        "[]{e}a]{9}",
        "(?#a)b",
        "x{a}",
        "a{,3}?",
        "{}",
    ],
)
def test_expressions_that_mean_one_thing_are_taken(pattern: str) -> None:
    (metric,) = Evaluation.model_validate({"metrics": [{"type": "regex", "pattern": pattern}]}).metrics
    assert metric.pattern == pattern  # type: ignore[union-attr]
    assert regex.compile(pattern), "the engine takes it, too"


def test_metrics_are_reported_under_their_names_or_types() -> None:
    metrics = [{"type": "exact_match"}, {"type": "number", "name": "gsm8k"}, {"type": "number"}]
    assert Evaluation.model_validate({"metrics": metrics}).names == ["exact_match", "gsm8k", "number"]


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({"metrics": []}, "at least 1"),
        ({"metrics": [{"type": "bertscore"}]}, "does not match any of the expected tags"),
        *(
            ({"metrics": [{"type": "regex", "pattern": pattern}]}, "is no regular expression")
            for pattern in ("(", "a{99999999999999999999}", "(" * 499 + ")" * 499)
        ),
        *(
            ({"metrics": [{"type": "regex", "pattern": pattern}]}, message)
            for message, patterns in UNUSABLE.items()
            for pattern in patterns
        ),
        *(
            ({"metrics": [{"type": type, "name": "g"}]}, "let an endpoint of yours compute it (type 'endpoint')")
            for type in ("label_model", "multi", "python", "score_model")
        ),
        ({"metrics": [{"type": "regex"}]}, "pattern"),
        ({"metrics": [{"type": "contains"}, {"type": "contains"}]}, "two metrics named contains; give each a 'name'"),
        *(
            ({"metrics": [{"type": "json_valid", "name": name}]}, "name")
            for name in ("a|b", "a,b", "=a", "a ", "ä", "a\n", "A" * 41)
        ),
        ({"metrics": [{"type": "rouge_l"}], "max_new_tokens": 0}, "max_new_tokens"),
        ({"metrics": [{"type": "rouge_l"}], "stop": [""]}, "stop"),
        ({"metrics": [{"type": "rouge_l"}], "temperature": True}, "must be a number, not true"),
        ({"metrics": [{"type": "rouge_l"}], "beams": 4}, "beams"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(evaluation: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Evaluation.model_validate(evaluation)
    assert message in str(refused.value)


def test_a_winner_is_selected_by_what_is_measured() -> None:
    assert spec().select_by == "val_loss"
    rouge = {"metrics": [{"type": "rouge_l", "name": "rouge"}]}
    assert spec(evaluation=rouge, select_by="rouge").select_by == "rouge"
    with pytest.raises(ValidationError, match=r"'select_by' is 'rouge', which nothing measures; .* ask for 'evaluation'"):
        spec(select_by="rouge")
    with pytest.raises(ValidationError, match="what can be selected by: val_loss, rouge"):
        spec(evaluation=rouge, select_by="bleu")


def test_texts_are_not_evaluated_on_a_base_in_fp8() -> None:
    rouge = {"metrics": [{"type": "rouge_l"}]}
    with pytest.raises(ValidationError, match="'evaluation' is not supported on a base in fp8; take 'precision' bf16, nf4"):
        spec(evaluation=rouge, precision="fp8")
    for precision in ("bf16", "nf4", "nf4_double"):
        assert spec(evaluation=rouge, precision=precision).evaluation is not None


@pytest.mark.parametrize("name", ["val_loss", "val_accuracy"])
def test_a_metric_has_no_name_of_validation_rows(name: str) -> None:
    with pytest.raises(ValidationError, match=f"is '{name}', which names a result of validation rows"):
        Evaluation.model_validate({"metrics": [{"type": "rouge_l", "name": name}]})


def test_only_a_worker_that_knows_every_metric_gets_the_task() -> None:
    asked = spec(evaluation={"metrics": [{"type": "number", "marker": "A:"}]}, select_by="number").model_dump(mode="json")
    wanted = needed(asked)
    assert "evaluation.metrics.type=number" in wanted
    assert "select_by" in wanted, "its workers stop jobs by the metric"
    assert wanted <= understood()
    assert not any("evaluation" in name for name in needed(spec().model_dump(mode="json")))


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def chained(count: int, copies: int = 1) -> dict[str, Any]:
    """References one after another, each of them so often."""
    links = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * copies} for n in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": links | {f"d{count}": {}}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"items": {"patternProperties": {}}}, "uses 'patternProperties' at #/items, whose cost cannot be bounded"),
        ({"allOf": [{"unevaluatedProperties": False}]}, "'unevaluatedProperties' at #/allOf/0"),
        ({"$dynamicRef": "#a"}, "'$dynamicRef'"),
        ({"title": "x" * 40_000}, "longer than 32768 characters"),
        (nested(900), "nested deeper than 64 levels"),
        ({"enum": [float("inf")]}, "not JSON compliant"),
        ({"minimum": float("nan")}, "not JSON compliant"),
        ({"type": 5}, "has at # a 'type' that is not one of array, boolean"),
        ({"properties": {"a": {"type": "text"}}}, "has at #/properties/a a 'type' that is not one of array"),
        ({"type": [{}]}, "has at # a 'type'"),
        ({"items": 5}, "has at #/items a number, where a schema"),
        ({"items": [{}]}, "has at #/items a list, where a schema"),
        ({"properties": ["a"]}, "a 'properties' that is not an object of schemas"),
        ({"anyOf": {}}, "a 'anyOf' that is not a list of schemas"),
        ({"required": "a"}, "a 'required' that is not a list of texts"),
        ({"dependentRequired": {"a": "b"}}, "'dependentRequired' that is not an object of lists of texts"),
        ({"multipleOf": 0}, "a 'multipleOf' that is not a number above 0"),
        ({"minimum": "1"}, "a 'minimum' that is not a number"),
        ({"maxLength": -1}, "a 'maxLength' that is not a whole number"),
        ({"maxItems": 1.5}, "a 'maxItems' that is not a whole number"),
        ({"uniqueItems": 1}, "a 'uniqueItems' that is not true or false"),
        ({"pattern": "("}, "a 'pattern' that is no regular expression"),
        ({"pattern": "[" * 32_000}, "a 'pattern' that is no regular expression: unterminated character set"),
        ({"items": {"pattern": "[a-z]{20000}"}}, "at #/items a 'pattern' that has more than 10,000 parts"),
        ({"pattern": "(?:a){1<=e<=9}"}, "a 'pattern' that has '{1<=e<=9}', which asks for inexact matches"),
        ({"$ref": 5}, "a '$ref' that is not a text"),
        ({"$ref": "http://localhost/x"}, "refers at # to 'http://localhost/x', where it has no schema"),
        ({"required": ["a"], "$ref": "#/required"}, "refers at # to '#/required', where it has no schema"),
        ({"x": {"type": 7}, "$ref": "#/x"}, "refers at # to '#/x'"),
        ({"items": {"$id": "http://[bad"}}, "has an '$id' at #/items"),
        ({"$ref": "#"}, "refers in a circle"),
        ({"anyOf": [{"not": {"$ref": "#/anyOf/0"}}]}, "refers in a circle"),
        (chained(300), "refers in a circle, or through more than 64 references"),
        (chained(20, 2), "checks one value more than 10000 times"),
    ],
)
def test_a_schema_that_cannot_be_checked_is_refused_with_its_place(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Evaluation.model_validate({"metrics": [{"type": "json_schema", "json_schema": schema}]})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/a", "title": "a"},
        {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
        {"$ref": "#/$defs/a~1b~0c%20d", "$defs": {"a/b~c d": True}},
        {"properties": {"a": {"$ref": "#named"}}, "$defs": {"x": {"$anchor": "named", "type": ["string", "null"]}}},
        {"properties": {"patternProperties": {"maxLength": 2.0}, "type": {"enum": [1, None]}}, "required": ["type"]},
        chained(10, 2),
    ],
)
def test_what_people_write_in_schemas_is_accepted(schema: dict[str, Any]) -> None:
    (metric,) = Evaluation.model_validate({"metrics": [{"type": "json_schema", "json_schema": schema}]}).metrics
    assert metric.model_dump()["json_schema"] == schema


ROUGE = {"metrics": [{"type": "rouge_l"}]}


@pytest.mark.parametrize(
    ("milestones", "message"),
    [
        ([0.5, 0.5], "must ascend, each share once"),
        ([0.75, 0.5], "must ascend, each share once"),
        ([0.0, 0.5], "greater than 0"),
        ([1.0], "less than 1"),
        ([True], "must be a number, not true"),
        ([at / 20 for at in range(4, 14)], "at most 8"),
        (3, "valid list"),
        ([0.1, 0.5], "begins at 0.1, but jobs are evaluated past their warmup alone, which takes 0.1 of their steps"),
    ],
)
def test_milestones_that_cannot_be_are_refused(milestones: Any, message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        spec(evaluation={**ROUGE, "milestones": milestones})
    assert message in str(refused.value)


def test_without_a_boundary_every_milestone_is_past_warmup() -> None:
    assert spec(evaluation={**ROUGE, "milestones": [0.05]}, early_exit={"policy": "none"}).evaluation is not None


@pytest.mark.parametrize(
    ("shares", "first", "total", "steps"),
    [
        ([0.25, 0.7], 1, 10, (3, 7)),  # 0.7 * 10 is more than 7
        ([0.2, 0.3], 5, 10, (5,)),  # not before the boundary, each step once
        ([0.5, 0.99], 1, 3, (2,)),  # not at the end
        ([0.5], 1, 1, ()),
        ([], 1, 10, ()),
    ],
)
def test_milestones_are_steps_past_the_boundary_and_before_the_end(
    shares: list[float], first: int, total: int, steps: tuple[int, ...]
) -> None:
    assert Evaluation.model_validate({**ROUGE, "milestones": shares}).milestone_steps(first, total) == steps


def test_only_a_worker_that_knows_milestones_gets_a_task_with_some() -> None:
    assert "evaluation.milestones" in needed(spec(evaluation={**ROUGE, "milestones": [0.5]}).model_dump(mode="json"))
    assert "evaluation.milestones" not in needed(spec(evaluation=ROUGE).model_dump(mode="json"))


@pytest.mark.parametrize(
    ("grader", "message"),
    [
        ({"type": "string_check"}, "operation"),
        ({"type": "string_check", "operation": "equals"}, "'eq', 'ne', 'like' or 'ilike'"),
        ({"type": "string_check", "operation": "eq", "input": ""}, "at least 1 character"),
        (
            {"type": "string_check", "operation": "eq", "input": "{{item.label}}"},
            "names {{item.label}}, which is not known here",
        ),
        ({"type": "string_check", "operation": "eq", "input": "{{sample.output_text"}, "opens a placeholder with '{{'"),
        ({"type": "string_check", "operation": "eq", "input": "4"}, "names {{sample.output_text}} neither in 'input' nor in"),
        ({"type": "string_check", "operation": "eq", "pass_threshold": 1}, "pass_threshold"),
        ({"type": "text_similarity", "evaluation_metric": "meteor"}, "is 'meteor', which is not computed here; there are bleu"),
        ({"type": "text_similarity", "evaluation_metric": "cosine"}, "or let an endpoint of yours compute it"),
        ({"type": "text_similarity", "evaluation_metric": "rouge_6"}, "'rouge_5' or 'rouge_l'"),
        ({"type": "text_similarity", "evaluation_metric": ["bleu"]}, "Input should be 'bleu'"),
    ],
)
def test_graders_that_cannot_be_are_refused(grader: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Evaluation.model_validate({"metrics": [grader]})
    assert message in str(refused.value)


def test_graders_are_written_as_openai_writes_them_and_need_a_worker_that_knows_them() -> None:
    templates = {"input": "{{sample.output_text}}", "reference": "Answer: {{ item.completion }}"}
    graders = [
        {"type": "string_check", "name": "exactly", "operation": "eq", **templates},
        {"type": "text_similarity", "name": "similar", "evaluation_metric": "rouge_2", **templates},
    ]
    made = spec(evaluation={"metrics": graders}, select_by="similar")
    assert made.evaluation is not None
    assert made.evaluation.names == ["exactly", "similar"]
    wanted = needed(made.model_dump(mode="json"))
    assert {"evaluation.metrics.type=string_check", "evaluation.metrics.evaluation_metric=rouge_2"} <= wanted <= understood()


@pytest.mark.parametrize("name", ["My Grader-1", "Exact: v2.1/de", "9", "A" * 40])
def test_a_grader_may_be_named_as_at_openai_where_the_worker_knows_such_names(name: str) -> None:
    made = spec(evaluation={"metrics": [{"type": "bleu", "name": name}]}, select_by=name)
    assert METRIC_NAMES in needed(made.model_dump(mode="json")) & understood()


def test_a_name_that_0_2_takes_needs_nothing_new() -> None:
    metrics = [{"type": "bleu"}, {"type": "exact_match", "name": "exactly_2"}]
    assert METRIC_NAMES not in needed(spec(evaluation={"metrics": metrics}).model_dump(mode="json"))
    assert METRIC_NAMES not in needed(spec().model_dump(mode="json"))
