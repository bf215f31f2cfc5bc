"""A device without memory for a pass: the step is done anew in smaller ones, and no job notices. And dropout, which is drawn
from places, not from the way a step is cut."""

import pytest

from contract.messages.report_messages import JobFailed
from tests.worker.corpus import rows
from tests.worker.inside import Inside
from worker.model.plain.trainer import OutOfMemory, Trainer

CALM = {"policy": "none", "eval_every": 4}
SPACE = {"learning_rate": [1e-2, 1e-3, 3e-3], "rank": [8], "batch_size": [4]}


@pytest.fixture
def small_device(monkeypatch):
    """Passes of more than 150 tokens find no memory, and training ones leave ruins in the gradient as a device would."""
    refused = []

    def small(real, trains):
        def within(self, segments, *form):
            tokens = sum(example.length for segment in segments for example in segment.examples)
            if tokens > 150:
                refused.append(tokens)
                for segment in segments if trains else ():
                    self.arena.grad[segment.slot.used].fill_(float("nan"))
                raise OutOfMemory(tokens, form[0] if trains else True)
            return real(self, segments, *form)

        return within

    monkeypatch.setattr(Trainer, "train", small(Trainer.train, True))
    monkeypatch.setattr(Trainer, "evaluate", small(Trainer.evaluate, False))
    return refused


def test_a_step_without_memory_is_done_anew_in_smaller_passes(fleet, placing, tmp_path, request):
    placement = placing({**SPACE, "dropout": [0.2]}, early_exit=CALM, training={"epochs": 1})
    (wanted,) = Inside(fleet, tmp_path / "large").run(placement)
    refused = request.getfixturevalue("small_device")
    again = placement.model_copy(update={"placement_id": "p2", "token": "token-p2"})
    (reported,) = Inside(fleet, tmp_path / "small").run(again)
    assert refused
    assert len(refused) < 8, "the smaller size is kept"
    assert [event.kind for event in reported.ended.values()] == ["job_completed"] * 3
    for key, curve in wanted.curves.items():
        assert list(reported.curves[key]) == list(curve), "every point once"
        assert list(reported.curves[key].values()) == pytest.approx(list(curve.values()), rel=1e-4)


def test_a_job_whose_rows_never_fit_fails_with_its_numbers_and_its_neighbour_goes_on(fleet, placing, tmp_path, small_device):
    spec = {"early_exit": CALM, "training": {"max_steps": 3, "max_seq_len": 200}}
    long = [{"prompt": f"{n}", "completion": " sheep" * 150} for n in range(6)]
    (alone,) = Inside(fleet, tmp_path / "alone").run(placing(SPACE, long, **spec))
    assert "ran out of memory in a pass of" in alone.of(JobFailed)[0].error
    short, other = Inside(fleet, tmp_path / "beside").run(placing(SPACE, rows(16), **spec), placing(SPACE, long, **spec))
    assert {event.kind for event in short.ended.values()} == {"job_completed"}
    for reported in (alone, other):
        assert {event.kind for event in reported.ended.values()} == {"job_failed"}
        assert "up to 199 tokens" in reported.of(JobFailed)[0].error


def test_dropout_changes_a_job_and_is_the_same_alone_and_packed(fleet, placing, tmp_path):
    curves = {}
    for name, dropout in (("packed", [0.3, 0.0]), ("alone", [0.3]), ("none", [0.0])):
        space = {"learning_rate": [3e-3], "rank": [8], "batch_size": [4], "dropout": dropout}
        placement = placing(space, early_exit=CALM, training={"epochs": 1})
        placement = placement.model_copy(update={"placement_id": name, "token": f"token-{name}"})
        (reported,) = Inside(fleet, tmp_path / name).run(placement)
        for job in reported.placement.jobs:
            curves[name, job.config.dropout] = reported.curves[job.index, "train_loss"]
    assert curves["packed", 0.3] == curves["alone", 0.3]
    assert curves["packed", 0.0] == curves["none", 0.0]
    first, last = min(curves["none", 0.0]), max(curves["none", 0.0])
    assert curves["packed", 0.3][first] == curves["none", 0.0][first], "B is 0: nothing to drop yet"
    assert curves["packed", 0.3][last] != curves["none", 0.0][last]
