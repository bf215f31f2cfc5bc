"""Texts at milestones: whose, with which weights, what an end waits for, and what a resumed task asks for again."""

import pytest

from contract.messages.report_messages import Detached, JobExited, Points, TextsEvaluated, Throughput
from tests.worker.executor.text_evaluations import ASKED, CALM, SPACE, passes_take
from tests.worker.inside import Inside, resumed
from worker.pipe_messages import Detach
from worker.replicas.replica_set import Replicas

pytestmark = pytest.mark.usefixtures("measured_once")

HALFWAY = {**ASKED, "milestones": [0.5]}
FOUR = {"learning_rate": [1e-2, 3e-3, 1e-3, 3e-4], "rank": [8], "batch_size": [4]}
ASHA = {"policy": "asha", "warmup_fraction": 0.2, "reduction_factor": 2, "eval_every": 4}


def at_milestones(reported) -> list[TextsEvaluated]:
    return [event for event in reported.of(TextsEvaluated) if event.milestone is not None]


def known(placement, *told):
    """The placement as the service makes it after these reports of milestones."""
    last = {event.job: event.milestone for reported in told for event in at_milestones(reported)}
    jobs = [job.model_copy(update={"milestone": last.get(job.index, 0)}) for job in placement.jobs]
    return placement.model_copy(update={"jobs": jobs})


def test_texts_are_those_of_the_weights_at_the_milestone(fleet, placing, tmp_path):
    whole = placing(SPACE, early_exit=CALM | {"eval_every": 9}, evaluation=HALFWAY, training={"epochs": 2})
    (reported,) = Inside(fleet, tmp_path / "whole").run(whole)
    found = at_milestones(reported)
    assert sorted((one.job, one.milestone, one.step) for one in found) == [(0, 9, 9), (1, 9, 9)]
    half = placing(SPACE, early_exit=CALM | {"eval_every": 9}, evaluation=ASKED, training={"epochs": 2, "max_steps": 9})
    (ended,) = Inside(fleet, tmp_path / "half").run(half)
    at_end = {event.job: event for event in ended.of(TextsEvaluated)}
    for one in found:
        assert (one.error, at_end[one.job].step) == (None, 9)
        assert one.samples == at_end[one.job].samples
        assert one.scores == at_end[one.job].scores
        assert one.prompt_scores == {}
    texts = reported.of(TextsEvaluated)
    assert sorted((one.job is not None, one.milestone or 0) for one in texts) == [
        (False, 0),
        *[(True, 0)] * 2,
        *[(True, 9)] * 2,
    ]
    assert sum(work.evaluation_tokens for work in reported.of(Throughput)) > sum(one.tokens for one in texts) > 0


def test_jobs_that_were_stopped_are_not_evaluated_any_more(fleet, placing, tmp_path):
    asked = {**ASKED, "milestones": [0.25, 0.75]}
    (reported,) = Inside(fleet, tmp_path).run(placing(FOUR, training={"epochs": 4}, early_exit=ASHA, evaluation=asked))
    ends = {job: end.step for job, end in reported.ended.items()}
    assert sorted(ends.values()) == [8, 8, 16, 36]
    found = sorted((one.milestone, one.job) for one in at_milestones(reported))
    assert found == sorted((step, job) for step in (9, 27) for job, end in ends.items() if end > step)


def test_a_job_that_is_stopped_ends_after_its_texts(fleet, placing, tmp_path):
    """They take more passes than the job has steps left. `Reported` refuses whatever comes after a job's end."""
    asked = {**ASKED, "milestones": [0.4], "max_new_tokens": 60}
    (reported,) = Inside(fleet, tmp_path).run(placing(FOUR, training={"epochs": 4}, early_exit=ASHA, evaluation=asked))
    stopped = next(job for job, end in reported.ended.items() if end.step == 16)
    (told,) = (one for one in at_milestones(reported) if one.job == stopped)
    assert (told.milestone, told.error) == (15, None)
    (end,) = (event for event in reported.of(JobExited) if event.job == stopped)
    points = [event for event in reported.events if isinstance(event, Points) and event.job == stopped]
    order = [reported.events.index(event) for event in (points[-1], told, end)]
    assert order == sorted(order)


def test_a_job_that_fails_takes_its_texts_with_it_and_its_neighbour_keeps_its_own(fleet, placing, tmp_path, monkeypatch):
    asked, real = {**HALFWAY, "max_new_tokens": 60}, Replicas.step

    def failing(self, jobs, *how):
        (stepped,), unrunnable = real(self, jobs, *how)
        for key in [job.key for job, step in jobs if job.key.job == 0 and step == 12]:
            unrunnable[key] = "no memory"
            del stepped.losses[key]
        return [stepped], unrunnable

    monkeypatch.setattr(Replicas, "step", failing)
    placement = placing(SPACE, early_exit=CALM, evaluation=asked, training={"epochs": 2})
    (reported,) = Inside(fleet, tmp_path).run(placement, prepare=passes_take(1e6))  # none beside training but the first
    assert [reported.ended[job].kind for job in (0, 1)] == ["job_failed", "job_completed"]
    assert [(one.job, one.milestone) for one in at_milestones(reported)] == [(1, 9)]


@pytest.mark.parametrize("heard", [False, True])
def test_a_resumed_task_asks_for_what_the_service_lacks_and_for_nothing_twice(fleet, placing, tmp_path, monkeypatch, heard):
    """The first placement leaves with a checkpoint past the milestone, before its texts are there, or after."""
    asked = {**ASKED, "milestones": [1 / 3], "max_new_tokens": 9 if heard else 200}
    placement = placing(SPACE, early_exit=CALM, evaluation=asked, training={"epochs": 12})
    executors, leaving, real = [], [], Replicas.step

    def leave():
        if not leaving:
            leaving.append(True)
            executors[0].handle_command(Detach(placement_id=placement.placement_id, keep=True))

    def stepping(self, jobs, *how):
        if not heard and min(step for _, step in jobs) >= 38:
            leave()
        return real(self, jobs, *how)

    def reported_so_far(reported, report):
        if heard and len(at_milestones(reported)) == 2:
            leave()

    def prepare(executor):
        executors.append(executor)
        passes_take(0.0 if heard else 1e6)(executor)  # one after another, or none beside training but the first

    monkeypatch.setattr(Replicas, "step", stepping)
    fleet.on_report = reported_so_far
    (first,) = Inside(fleet, tmp_path / "first").run(placement, prepare=prepare, paced=True)
    assert first.of(Detached)
    assert len(at_milestones(first)) == (2 if heard else 0)
    assert all(first.checkpoints[job].step >= 36 for job in (0, 1))
    fleet.on_report = lambda reported, report: None
    again = known(resumed(first, "again"), first)
    again = again.model_copy(update={"spec": again.spec, "base_texts_evaluated": True})
    (second,) = Inside(fleet, tmp_path / "second").run(again)
    late = sorted((one.job, one.milestone, one.step) for one in at_milestones(second))
    assert late == ([] if heard else [(job, 36, first.checkpoints[job].step + 1) for job in (0, 1)])
    assert sorted(second.ended) == [0, 1]
