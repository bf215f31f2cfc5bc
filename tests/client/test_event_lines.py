"""A task's log in sentences: every job that ended says why."""

from datetime import UTC, datetime

import pytest
from motet.api.resources import Event
from motet.display.event_lines import line_of

from contract.wording.exit_sentences import exit_sentence

BEST = "best validation loss 1.2500 at step 30"
MEAN = "the mean of steps 5, 6 and 8"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ENDED = {"job": 3, "job_id": "job_3", "step": 40, "best_step": 30, "best_val_loss": 1.25}
RANKED = {"pattern": "ranked after warmup", "rank": 9, "alive": 16, "kept": 6, "val_loss": 2.5}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"status": "exited", "exit_reason": "underperforming", "exit_evidence": RANKED},
            f"exited at step 40: underperforming, 9th of 16 after warmup, at most 6 go on; {BEST}",
        ),
        (
            {"status": "exited", "exit_reason": "overfitting", "exit_evidence": {"gap": None, "pattern": "it stays above"}},
            "exited at step 40: overfitting, it stays above; best validation loss 1.2500 at step 30",
        ),
        (  # of an earlier service
            {"status": "exited", "exit_reason": "diverging"},
            "exited at step 40: diverging; best validation loss 1.2500 at step 30",
        ),
        (  # of a later one
            {"status": "exited", "exit_reason": "bored", "exit_evidence": {"yawns": 3}},
            "exited at step 40: bored; best validation loss 1.2500 at step 30",
        ),
        ({"status": "failed", "error": "the loss is NaN", "best_val_loss": None}, "failed at step 40: the loss is NaN"),
        ({"status": "completed"}, "completed at step 40: best validation loss 1.2500 at step 30"),
        (
            {"status": "completed", "averaged_steps": [20, 30, 40]},
            "completed at step 40: best validation loss 1.2500 of the mean of steps 20, 30 and 40",
        ),
    ],
)
def test_a_job_that_ended_says_why(more, said):
    event = Event(number=7, type="job", data=ENDED | more, created_at=NOW)
    assert line_of(event) == f"2026-01-02 03:04:05 UTC job 3 is {said}"


@pytest.mark.parametrize(
    ("more", "taken"), [({}, "step 6"), ({"averaged_steps": []}, "step 6"), ({"averaged_steps": [5, 6, 8]}, MEAN)]
)
def test_an_adapter_is_of_a_step_or_of_a_mean(more, taken):
    data = {"job": 1, "adapter_id": "adapter_1", "step": 6, "val_loss": 0.5564} | more
    said = line_of(Event(number=7, type="adapter", data=data, created_at=NOW))
    assert said.endswith(f"job 1 stored adapter_1 of {taken}, validation loss 0.5564")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"scores": {"rouge": 0.25}}, "rouge 0.250"),
        ({"scores": {}, "evaluation_error": "no memory"}, "no scores: no memory"),
    ],
)
def test_texts_at_a_milestone_are_told_with_the_step_of_their_weights(more, said):
    data = {"job": 3, "status": "training", "step": 9, "milestone": 5, "evaluated_step": 7} | more
    assert line_of(Event(number=7, type="job", data=data, created_at=NOW)).endswith(f"job 3 wrote texts at step 7, {said}")


def test_rows_that_validate_and_train_are_told_with_the_bases_loss():
    data = {"val_loss": 3.0, "rows": {"validation": 5, "overlap": 4}}
    said = line_of(Event(number=7, type="base", data=data, created_at=NOW))
    assert "has validation loss 3.0000; 4 of 5 validation rows are also trained on, so validation losses say little" in said


@pytest.mark.parametrize(
    ("reason", "evidence"),
    [
        ("underperforming", {"base_val_loss": 3.0, "val_loss": None}),
        ("underperforming", {"difference_low": None, "difference_high": None, "rows": 8}),
        ("diverging", {"train_slope": float("inf"), "val_slope": None}),
        ("overfitting", {"gap": None, "tau_gap": 0.1}),
        ("overfitting", {"gap": 10**400, "tau_gap": 0.1}),
        ("overfitting", {"gap": {"of": 3}, "tau_gap": True}),
        ("underperforming", {"rank": "3rd", "alive": [8], "kept": 2}),
        ("underperforming", {"metric": 3, "score": "low", "base_score": {}}),
    ],
)
def test_evidence_without_finite_numbers_is_told_by_its_pattern(reason, evidence):
    assert exit_sentence(reason, evidence | {"pattern": "as it is called"}).startswith("as it is called")


@pytest.mark.parametrize(
    ("step", "said"), [(122, "goes on from its checkpoint at step 122"), (-1, "has no checkpoint and starts at step 0")]
)
def test_a_job_whose_placement_ended_says_where_it_goes_on(step, said):
    event = Event(number=7, type="rewind", data={"job": 3, "step": step, "status": "pending"}, created_at=NOW)
    assert line_of(event) == f"2026-01-02 03:04:05 UTC job 3 {said}"
