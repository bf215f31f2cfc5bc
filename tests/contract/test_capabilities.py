"""What a spec needs and what a worker understands, read off the same model; and which protocols are neighbours."""

import pytest

from contract.compatibility.capabilities import SERVICE_FIELDS, needed, understood
from contract.compatibility.capabilities_0_1 import CAPABILITIES_0_1
from contract.compatibility.protocol import refusal
from contract.task_spec import TaskSpec

SPEC = {"base_model": "b", "dataset": {"file_id": "f"}, "search_space": {"learning_rate": [1e-3]}}


def test_every_spec_of_today_is_understood_today() -> None:
    full = SPEC | {
        "search_space": {
            "method": "list",
            "jobs": [{"learning_rate": 1e-3, "schedule": "cosine", "target_modules": ["q_proj"]}],
        },
        "objective": {"type": "dpo"},
        "precision": "nf4",
        "early_exit": {"policy": "asha", "reduction_factor": 3},
        "warm_start": {"adapter_id": "a"},
        "training": {"epochs": 7, "max_steps": 5},
        "gpus": 2,
    }
    needs = needed(TaskSpec.model_validate(full).model_dump(mode="json"), "llama")
    assert needs <= understood()
    assert {"objective.type=dpo", "precision=nf4", "early_exit.policy=asha", "model_type=llama"} <= needs
    assert {"search_space.jobs.schedule=cosine", "search_space.jobs.target_modules=q_proj", "training.epochs"} <= needs


def test_defaults_that_are_sent_need_nothing() -> None:
    whole = TaskSpec.model_validate(SPEC).model_dump(mode="json")
    assert needed(whole) == needed(SPEC) == {
        "base_model", "dataset", "dataset.file_id", "search_space", "search_space.learning_rate"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "needs"),
    [
        ({"nova": 3}, {"nova"}),
        ({"nova": None}, set()),
        ({"training": {"nova": {"deep": 1}}}, {"training.nova"}),
        ({"objective": {"type": "orpo"}}, {"objective.type=orpo"}),
        ({"search_space": {"learning_rate": [1e-3], "nova": [1, 2]}}, {"search_space.nova"}),
        ({"search_space": {"schedule": ["cosine", "wave"]}}, {"search_space.schedule=wave"}),
        ({"early_exit": {"policy": "none", "nova": False}}, {"early_exit.nova"}),
    ],
)
def test_what_only_a_newer_worker_understands(more, needs) -> None:
    assert needed(SPEC | more) - understood() == needs
    assert needed(SPEC | more) - CAPABILITIES_0_1 == needs


def test_a_worker_of_tomorrow_understands_its_own_field() -> None:
    schema = TaskSpec.model_json_schema()
    schema["properties"]["nova"] = {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}], "default": None}
    tomorrow = understood(schema)
    assert tomorrow - understood() == {"nova", "nova=a", "nova=b"}
    assert needed(SPEC | {"nova": "b"}, spec_schema=schema) <= tomorrow
    assert needed(SPEC | {"nova": "b"}) <= tomorrow, "a service of today needs not know the field to know who does"


def test_what_the_planner_alone_reads_needs_no_worker() -> None:
    said = {"name": "n", "priority": 7, "labels": {"a": "b"}, "not_before": "2030-01-01T00:00:00Z", "max_gpus": 8}
    assert needed(SPEC | said) == needed(SPEC)
    assert set(TaskSpec.model_fields) >= SERVICE_FIELDS


def test_nothing_that_0_1_understood_was_taken_away() -> None:
    assert understood() >= CAPABILITIES_0_1


@pytest.mark.parametrize(("ours", "theirs", "spoken"), [(3, 3, True), (3, 2, True), (3, 4, True), (3, 1, False), (3, 5, False)])
def test_neighbours_speak(ours, theirs, spoken) -> None:
    why = refusal(ours, theirs, "node n")
    assert (why is None) == spoken
    if why is not None:
        assert why.startswith(f"node n speaks protocol {theirs}, and 2 to 4 are understood here: bring ")
        assert ("bring node n to" in why) == (theirs < ours)
