"""Endpoint graders among the metrics that a task asks for: how they are written, and what is refused by name."""

from typing import Any

import pytest
from pydantic import ValidationError

from contract.compatibility.capabilities import needed, understood
from contract.evaluation.text_evaluation import Evaluation
from tests.contract.test_text_evaluation import spec

JUDGE: dict[str, Any] = {"type": "endpoint", "name": "judge", "url": "https://judge.example.com/grade"}


def test_an_endpoint_grader_is_accepted_as_openai_writes_it() -> None:
    asked = {**JUDGE, "headers": {"Authorization": "Bearer k"}, "rate_limit": 50}
    (grader,) = Evaluation.model_validate({"metrics": [{"type": "rouge_l"}, asked]}).endpoints
    assert (grader.name, grader.headers, grader.rate_limit) == ("judge", {"Authorization": "Bearer k"}, 50)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"url": "ftp://judge.example.com"}, "url"),
        ({"url": "https://" + "x" * 2048}, "url"),
        ({"headers": {"Content-Type": "text/plain"}}, "is 'Content-Type', which the service sets by itself; leave it out"),
        ({"headers": {"X Key": "k"}}, "headers"),
        ({"headers": {"X-Key": "a\r\nHost: b"}}, "headers"),
        ({"headers": {"X-Key": ""}}, "headers"),
        ({"headers": {"X-Key": "a", "x-key": "b"}}, "names x-key twice"),
        ({"headers": {f"X-{n}": "k" for n in range(17)}}, "at most 16"),
        ({"rate_limit": 0}, "rate_limit"),
        (
            {"pass_threshold": 0.5},
            "gives 'pass_threshold', but results are means of scores, which nothing passes; leave it out",
        ),
    ],
)
def test_an_endpoint_grader_that_cannot_be_called_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Evaluation.model_validate({"metrics": [{**JUDGE, **more}]})
    assert message in str(refused.value)


def test_no_winner_is_selected_by_an_endpoint_grader() -> None:
    asked = {"metrics": [{"type": "rouge_l"}, JUDGE]}
    said = "an endpoint grader, whose scores come after the winner is chosen; what can be selected by: val_loss, rouge_l"
    with pytest.raises(ValidationError, match=said):
        spec(evaluation=asked, select_by="judge")
    assert spec(evaluation=asked, select_by="rouge_l").select_by == "rouge_l"


def test_without_secrets_a_specs_headers_are_asterisks_and_all_else_is_the_same() -> None:
    asked = {"metrics": [{"type": "rouge_l"}, {**JUDGE, "headers": {"X-Key": "k"}}], "max_prompts": 3}
    evaluation = Evaluation.model_validate(asked)
    hidden = {**JUDGE, "headers": {"X-Key": "**********"}}
    assert evaluation.without_secrets().model_dump(exclude_unset=True) == {**asked, "metrics": [{"type": "rouge_l"}, hidden]}
    assert evaluation.model_dump(exclude_unset=True) == asked


def test_only_a_worker_that_reports_texts_for_endpoints_gets_the_task() -> None:
    wanted = needed(spec(evaluation={"metrics": [JUDGE]}).model_dump(mode="json"))
    assert "evaluation.metrics.type=endpoint" in wanted
    assert wanted <= understood()
