"""What an evaluation costs is told: to the tasks whose jobs it was of, and as a wait for the others."""

from types import SimpleNamespace
from typing import Any

from worker.executor.evaluation.job_evaluations import JobEvaluations
from worker.policy.job_record import JobKey


def test_an_evaluations_seconds_are_divided_by_tokens_and_told_once() -> None:
    results = {JobKey("a", 0): 100, JobKey("a", 1): 200, JobKey("b", 0): 100}
    counted: dict[str, tuple[float, int]] = {}
    tasks: Any = {key: SimpleNamespace(count_evaluation=lambda *said, key=key: counted.update({key: said})) for key in "ab"}
    replicas: Any = SimpleNamespace(
        evaluate=lambda *_: ({key: SimpleNamespace(tokens=tokens) for key, tokens in results.items()}, {})
    )
    told: list[tuple[float, dict[str, int]]] = []
    evaluations = JobEvaluations(tasks, lambda: None, lambda seconds, tokens: told.append((seconds, dict(tokens))))
    found, unrunnable = evaluations.after_step(replicas, [])
    assert (found.keys(), unrunnable) == (results.keys(), {})
    ((seconds, tokens),) = told
    assert tokens == {"a": 300, "b": 100}
    assert {key: own for key, (_, own) in counted.items()} == tokens
    assert counted["a"][0] == 3 * counted["b"][0] == 0.75 * seconds
