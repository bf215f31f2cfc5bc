"""Nested validation in a running executor: what is read when, what it costs, and what is reported of each row."""

import pytest

from contract.job_schedule import JobSchedule
from contract.messages.report_messages import AdapterKept, Attached, BaseEvaluated, JobMoved, Throughput
from contract.row_scores import RowScores
from contract.states import ExitReason, JobStatus
from contract.validation_parts import validation_parts
from tests.worker.corpus import rows
from tests.worker.inside import Inside

pytestmark = pytest.mark.usefixtures("measured_once")

SPACE = {"learning_rate": [1e-2, 1e-3, 1e-4, 3e-3, 3e-4, 3e-5], "rank": [4], "batch_size": [4]}
DEFAULTS = {"max_evaluation_share": 0.15}


@pytest.fixture
def searched(fleet, placing, tmp_path):
    """A search at product defaults but for its size: 120 rows of which 24 validate."""

    def search(space=SPACE, epochs=3, **early_exit):
        dataset = {"validation_fraction": 0.4}
        placement = placing(space, rows(120), dataset=dataset, training={"epochs": epochs}, early_exit=DEFAULTS | early_exit)
        (reported,) = Inside(fleet, tmp_path).run(placement)
        return placement, reported

    return search


def test_trends_read_a_small_part_and_judgements_all_rows(searched):
    placement, reported = searched(tau_gap=10.0)
    attached, (base,) = reported.events[0], reported.of(BaseEvaluated)
    assert isinstance(attached, Attached)
    parts = validation_parts(placement.spec, attached.train_rows, 48)
    assert (attached.trend_rows, attached.validation_rows) == (parts.trend, parts.full)
    assert 8 <= parts.trend < parts.full == 32
    assert len(base.scores.totals) == parts.full
    assert base.scores.mean == pytest.approx(base.val_loss)

    kept = reported.of(AdapterKept)
    assert 1 <= len(kept) <= 3, "half to one and a half times a quarter of six jobs"
    for event in kept:
        assert event.scores.comparable(base.scores)
        assert event.scores.mean == pytest.approx(event.manifest.val_loss)
        assert event.manifest.val_loss == reported.ended[event.job].best_val_loss
        assert event.manifest.val_loss != reported.curves[event.job, "val_loss"][event.manifest.step], "of other rows"
    for job, event in reported.ended.items():
        if event.kind == "job_exited" and event.reason is ExitReason.UNDERPERFORMING:
            assert event.best_val_loss == reported.warmup_losses[job]
            assert event.best_step == event.step

    work = reported.of(Throughput)
    schedule = JobSchedule.of(placement.spec, placement.jobs[0].config, attached.train_rows)
    trends = sum(len(curve) for (_, series), curve in reported.curves.items() if series == "val_loss") - 6
    tokens = sum(w.evaluation_tokens for w in work) / sum(w.tokens for w in work)
    trained = sum(event.step for event in reported.ended.values()) * 4
    read = trends * parts.trend + (6 + len(kept)) * parts.full
    assert tokens == pytest.approx(read / trained, rel=0.25), "rows differ in length"
    assert schedule.evaluations < 30


def test_an_adapter_is_the_one_that_was_judged(searched, fleet):
    """The scores are of the stored weights: those of the best step, not of the last."""
    _, reported = searched(space=SPACE | {"learning_rate": [3e-2, 1e-2]}, epochs=6, policy="none")
    for event in reported.of(AdapterKept):
        trend = reported.curves[event.job, "val_loss"]
        assert event.manifest.step == min(trend, key=trend.get)


def test_a_search_that_only_harms_is_ended_after_its_warmup(searched):
    placement, reported = searched(space=SPACE | {"learning_rate": [1.0, 2.0, 3.0, 4.0]}, warmup_fraction=0.05)
    (base,) = reported.of(BaseEvaluated)
    boundary = JobSchedule.of(placement.spec, placement.jobs[0].config, reported.events[0].train_rows).warmup_steps
    for event in reported.ended.values():
        assert (event.kind, event.reason, event.step) == ("job_exited", ExitReason.UNDERPERFORMING, boundary)
        assert event.evidence["val_loss"] > event.evidence["base_val_loss"] == pytest.approx(base.val_loss)
    assert not any(event.status is JobStatus.TRAINING for event in reported.of(JobMoved))
    (kept,) = reported.of(AdapterKept)
    assert kept.job == min(reported.warmup_losses, key=reported.warmup_losses.get)


def test_the_best_of_a_search_that_only_harms_has_its_scores_though_it_waited_parked(searched):
    """Its loss was lowest before the boundary, at which it was parked until the smaller batches came there."""
    space = SPACE | {"learning_rate": [1.0, 2.0, 3.0], "batch_size": [4, 8]}
    _, reported = searched(space=space, warmup_fraction=0.05, eval_every=1, tau_gap=1e5, tau_slope=1e5)
    (base,), (kept,) = reported.of(BaseEvaluated), reported.of(AdapterKept)
    trend, end = reported.curves[kept.job, "val_loss"], reported.ended[kept.job]
    assert JobStatus.PARKED in [event.status for event in reported.of(JobMoved) if event.job == kept.job]
    assert min(trend, key=trend.get) < end.step, "else its boundary's evaluation is that of its best weights"
    assert kept.manifest.step == end.best_step == end.step
    assert kept.manifest.val_loss == end.best_val_loss == reported.warmup_losses[kept.job]
    assert kept.scores.comparable(base.scores)
    assert kept.scores.mean == pytest.approx(kept.manifest.val_loss)
    assert kept.scores.surely_worse_than(base.scores)


@pytest.mark.parametrize("share", [0.15, None])
def test_a_job_without_rivals_passes_its_boundary_however_many_rows_its_trend_has(searched, share):
    """It is surely worse than the base there, which all rows of its trend would show where it has all."""
    space = SPACE | {"learning_rate": [3.0], "batch_size": [8]}
    _, reported = searched(space=space, warmup_fraction=0.05, tau_gap=1e5, tau_slope=1e5, max_evaluation_share=share)
    (base,) = reported.of(BaseEvaluated)
    assert reported.warmup_losses[0] > base.val_loss
    assert (reported.ended[0].kind, reported.ended[0].step) == ("job_completed", 27)


def test_a_search_over_beta_is_scored_by_its_errors(fleet, placing, tmp_path):
    pairs = [{"prompt": f"{n} and one", "chosen": f" make {n + 1}.", "rejected": f" cost {n} pounds."} for n in range(60)]
    space = {"learning_rate": [1e-2], "rank": [4], "batch_size": [4], "beta": [0.1, 0.5]}
    placement = placing(space, pairs, objective={"type": "dpo"}, training={"epochs": 1}, early_exit={"policy": "none"})
    (reported,) = Inside(fleet, tmp_path).run(placement)
    (base,) = reported.of(BaseEvaluated)
    assert base.scores == RowScores(metric="error", totals=[0.5] * 6)
    for event in reported.of(AdapterKept):
        assert set(event.scores.totals) <= {0.0, 0.5, 1.0}
        accuracy = reported.curves[event.job, "val_accuracy"][event.manifest.step]
        assert 1 - event.scores.mean == pytest.approx(accuracy)
