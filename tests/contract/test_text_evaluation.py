"""What a task may ask of its texts, and what is refused by name."""

from typing import Any

import pytest
from pydantic import ValidationError

from contract.compatibility.capabilities import needed, understood
from contract.task_spec import TaskSpec
from contract.text_evaluation import Evaluation

SPACE = {"learning_rate": [1e-3]}


def spec(**more: Any) -> TaskSpec:
    return TaskSpec.model_validate({"base_model": "b", "dataset": {"file_id": "f"}, "search_space": SPACE, **more})


def test_metrics_are_reported_under_their_names_or_types() -> None:
    metrics = [{"type": "exact_match"}, {"type": "number", "name": "gsm8k"}, {"type": "number"}]
    assert Evaluation.model_validate({"metrics": metrics}).names == ["exact_match", "gsm8k", "number"]


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({"metrics": []}, "at least 1"),
        ({"metrics": [{"type": "bertscore"}]}, "does not match any of the expected tags"),
        ({"metrics": [{"type": "regex", "pattern": "("}]}, "is no regular expression"),
        ({"metrics": [{"type": "regex"}]}, "pattern"),
        ({"metrics": [{"type": "json_schema", "json_schema": {"items": {"patternProperties": {}}}}]}, "'patternProperties'"),
        ({"metrics": [{"type": "json_schema", "json_schema": {"$dynamicRef": "#a"}}]}, "'$dynamicRef'"),
        ({"metrics": [{"type": "json_schema", "json_schema": {"title": "x" * 40_000}}]}, "longer than 32768 characters"),
        ({"metrics": [{"type": "contains"}, {"type": "contains"}]}, "two metrics named contains; give each a 'name'"),
        ({"metrics": [{"type": "json_valid", "name": "No spaces"}]}, "name"),
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
    assert "select_by" not in wanted
    assert wanted <= understood()
    assert not any("evaluation" in name for name in needed(spec().model_dump(mode="json")))
