"""A tpe search on the executor: rounds that wait for warmups, configurations that are reported before they train, and what
becomes of them when the executor is lost or nothing can be trained."""

import threading
from typing import Any

import pytest

from contract.messages.report_messages import Attached, JobFailed, JobMoved, JobProposed
from contract.states import JOB_TERMINAL, JobStatus
from tests.worker.corpus import PAIRS
from tests.worker.inside import Inside, resumed
from worker.policy import tpe_proposals

pytestmark = pytest.mark.usefixtures("measured_once")

SPACE = {
    "method": "tpe",
    "n": 14,
    "learning_rate": [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
    "rank": [4, 8, 24],
    "batch_size": [4, 8],
}
QUICK: dict[str, Any] = {"training": {"max_steps": 10}, "early_exit": {"warmup_fraction": 0.2}}
FIRST = range(8)  # jobs of the first round


def proposals(reported):
    return {event.job: event for event in reported.of(JobProposed)}


def test_the_second_round_is_proposed_once_the_first_has_warmed_up(fleet, placing, tmp_path):
    placement = placing(SPACE, **QUICK)
    (reported,) = Inside(fleet, tmp_path, worker_checkpoint_seconds=0.001).run(placement)
    assert all(status in JOB_TERMINAL for status in reported.status.values())
    assert all(status != JobStatus.FAILED for status in reported.status.values())
    found = proposals(reported)
    assert sorted(found) == list(range(8, 14))
    configs = [config.model_dump_json() for config in reported.proposed.values()]
    assert len(set(configs)) == 14, "nothing is tried twice"
    assert [found[job].config for job in found] != [placement.jobs[job].config for job in found]
    at = reported.events.index(found[8])
    before = [event for event in reported.events[:at] if isinstance(event, JobMoved)]
    assert {event.job for event in before} == set(FIRST)
    assert {event.job for event in before if event.warmup_val_loss is not None} == set(FIRST)
    for job, event in found.items():
        assert (event.total_steps, event.warmup_steps) == (10, 2)
        if job in reported.manifests:
            assert reported.manifests[job].lineage.config == event.config
    (attached,) = reported.of(Attached)
    assert sorted(attached.total_steps) == list(range(14)), "a task's progress counts what is to come"
    alike = placement.model_copy(update={"placement_id": "again", "token": "token-again"})
    (again,) = Inside(fleet, tmp_path / "again").run(alike)
    assert (again.proposed, again.curves) == (reported.proposed, reported.curves)


def test_a_job_that_ends_before_any_boundary_counts_as_unknown_and_not_as_diverged(fleet, placing, tmp_path, monkeypatch):
    """All rows are one batch: its only step is its last one."""
    seen, propose = dict[int, set[bool]](), tpe_proposals.propose

    def watched(spec, tried, count):
        for config, value in tried:
            seen.setdefault(config.batch_size, set()).add(value is None)
        return propose(spec, tried, count)

    monkeypatch.setattr(tpe_proposals, "propose", watched)
    training = {"training": {"max_steps": 10, "epochs": 1}}
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE | {"batch_size": [4, 1024]}, **QUICK | training))
    assert all(status in (JobStatus.COMPLETED, JobStatus.EXITED) for status in reported.status.values())
    assert seen == {4: {False}, 1024: {True}}


@pytest.mark.parametrize("at", ["before", "within", "after"])
def test_an_executor_that_is_lost_at_a_proposal_loses_none(fleet, placing, tmp_path, monkeypatch, at):
    """before: nothing was proposed yet. after: the proposals were reported, and what they led to is gone. within: two of a
    round's were not."""
    placement = placing(SPACE, **QUICK)
    inside = Inside(fleet, tmp_path / "lost", worker_checkpoint_seconds=0.001)
    may_propose, propose = threading.Event(), tpe_proposals.propose

    def proposed_late(*arguments):
        """Before: the service has ended the placement, however long it took to hear of the last warmup."""
        assert at != "before" or may_propose.wait(120), "the warmups are not reported"
        return propose(*arguments)

    monkeypatch.setattr(tpe_proposals, "propose", proposed_late)

    def lose(told, report):
        if told.placement is placement and (proposals(told) or (at == "before" and len(told.warmup_losses) == 8)):
            fleet.end(placement.placement_id)
            may_propose.set()

    fleet.on_report = lose
    inside.on_news = lambda news: None
    (lost,) = inside.run(placement)
    assert bool(proposals(lost)) == (at != "before")
    if at == "within":
        lost.proposed |= dict.fromkeys((12, 13))
    fleet.on_report = lambda told, report: None
    base = lost.events[1].val_loss if hasattr(lost.events[1], "val_loss") else None
    (reported,) = Inside(fleet, tmp_path / "next").run(resumed(lost, "next", base))
    assert all(status in JOB_TERMINAL for status in reported.status.values())
    assert sorted({**proposals(lost), **proposals(reported)}) == list(range(8, 14))
    (whole,) = Inside(fleet, tmp_path / "whole").run(
        placement.model_copy(update={"placement_id": "whole", "token": "token-whole"})
    )
    assert reported.proposed == whole.proposed


def test_pairs_are_compared_with_the_reference_in_every_round(fleet, placing, tmp_path):
    space = SPACE | {"n": 10, "beta": [0.1, 0.5]}
    placement = placing(space, PAIRS, objective={"type": "dpo"}, **QUICK)
    (reported,) = Inside(fleet, tmp_path).run(placement)
    assert sorted(proposals(reported)) == [8, 9]
    assert all(status in JOB_TERMINAL and status != JobStatus.FAILED for status in reported.status.values())
    assert {8, 9} <= reported.warmup_losses.keys()
    spread = {"placement_id": "spread", "token": "token-spread", "device_indexes": [0, 1]}
    (over_two,) = Inside(fleet, tmp_path / "spread").run(placement.model_copy(update=spread))
    assert over_two.proposed == reported.proposed
    assert over_two.curves == reported.curves, "a rank is told of each round's jobs, and has their reference"


def test_where_nothing_can_be_trained_the_rounds_to_come_fail_too(fleet, placing, tmp_path, monkeypatch):
    monkeypatch.setattr("worker.replicas.replica_set.admission_refusal", lambda demand, capacity: "no room for it")
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE, **QUICK))
    assert set(reported.status.values()) == {JobStatus.FAILED}
    assert not proposals(reported)
    (last,) = [event for event in reported.of(JobFailed) if event.job == 13]
    assert last.error == "no configuration before this one could be trained; the last of them: no room for it"


def test_of_jobs_that_failed_under_an_earlier_placement_no_reason_is_made_up(fleet, placing, tmp_path):
    placement = placing(SPACE, **QUICK)
    failed = [job.model_copy(update={"status": JobStatus.FAILED} if job.index in FIRST else {}) for job in placement.jobs]
    (reported,) = Inside(fleet, tmp_path).run(placement.model_copy(update={"jobs": failed}))
    errors = {event.job: event.error for event in reported.of(JobFailed)}
    assert errors == dict.fromkeys(range(8, 14), "no configuration before this one could be trained")
