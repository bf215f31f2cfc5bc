"""Texts scored by metrics as a spec writes them."""

from time import thread_time
from typing import Any

from pydantic import TypeAdapter

from contract.evaluation.text_evaluation import JsonSchema, TextMetric
from worker.metrics.scoring import Scoring
from worker.metrics.text_metrics import scorer

METRIC: TypeAdapter[Any] = TypeAdapter(TextMetric)


def score(metric: dict[str, Any], text: str, reference: str = "") -> float:
    return scorer(METRIC.validate_python(metric), thread_time)(text, reference)


def scored(*metrics: Any, pairs: list[tuple[str, str]]) -> Scoring:
    """In slices of one text each."""
    made = Scoring([METRIC.validate_python(one) if isinstance(one, dict) else one for one in metrics], pairs, thread_time)
    while not made.done:
        made.advance(0)
    return made


def like(measure: str, **more: str) -> dict[str, str]:
    return {"type": "text_similarity", "evaluation_metric": measure, **more}


def unchecked(schema: dict[str, Any]) -> JsonSchema:
    """A schema that the contract refuses: the worker must outlive it all the same."""
    return JsonSchema.model_construct(type="json_schema", name=None, json_schema=schema)
