"""The cut after warmup by a text metric on an executor: who goes on, who waits for whom, interruptions, neighbours."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from contract.job_schedule import JobSchedule
from contract.messages.report_messages import Detached, JobExited, JobMoved, TextsEvaluated
from contract.row_scores import RowScores
from contract.states import ExitReason, JobStatus
from contract.wording.exit_sentences import exit_sentence
from tests.worker.corpus import rows
from tests.worker.executor.text_evaluations import PAIRS
from tests.worker.inside import Inside, resumed
from worker.executor.evaluation.asked_texts import AskedTexts
from worker.executor.placement.job_run import JobRun
from worker.executor.placement.placement_lease import Lease
from worker.executor.placement.placement_run import PlacementRun
from worker.executor.rung_ranks import certain_ranks
from worker.metrics.score_errors import MetricError
from worker.pipe_messages import Detach
from worker.policy.job_record import JobKey, JobProgress, JobRecord, Stage
from worker.replicas.replica_set import Replicas
from worker.replicas.text_generation import TextGeneration

pytestmark = pytest.mark.usefixtures("measured_once")

SPACE = {"learning_rate": [1e-2, 1e-3, 1e-4, 3e-3], "rank": [8], "batch_size": [4]}
GOOD = {"metrics": [{"type": "regex", "name": "good", "pattern": "good"}, {"type": "chrf"}], "max_new_tokens": 3}
ALTO = {"policy": "alto", "warmup_fraction": 0.3, "keep_fraction": 0.25, "tau_gap": 10.0}
GUARDED = {**ALTO, "policy": "alto_guarded"}
BY_GOOD = {"evaluation": GOOD, "select_by": "good", "training": {"epochs": 1}}
CHRF = {"evaluation": {**GOOD, "max_new_tokens": 6}, "select_by": "chrf", "training": {"epochs": 2}}


@pytest.fixture
def graded(monkeypatch):
    """Makes the texts of these jobs (None: the base) all good, of the others all bad, and those of `lost` unscorable."""

    def grade(good, lost=()):
        def pairs(self, completions):
            job = self.run.index if self.run is not None else None
            if job in lost:
                raise MetricError("nobody can score that")
            return [("good" if job in good else "bad", prompt.reference) for prompt in self.prompts]

        monkeypatch.setattr(AskedTexts, "pairs", pairs)

    return grade


def at_boundary(reported) -> dict[int, TextsEvaluated]:
    step = reported.events[0].warmup_steps
    return {e.job: e for e in reported.of(TextsEvaluated) if e.milestone is not None and e.milestone == step[e.job]}


def promoted(reported) -> list[int]:
    return sorted(event.job for event in reported.of(JobMoved) if event.status == JobStatus.TRAINING)


def cut(reported) -> dict[int, dict]:
    ended = reported.ended.items()
    return {job: end.evidence for job, end in ended if getattr(end, "reason", None) is ExitReason.UNDERPERFORMING}


def test_where_the_metric_and_the_loss_disagree_the_metric_decides(fleet, placing, tmp_path, graded):
    (by_loss,) = Inside(fleet, tmp_path / "loss").run(placing(SPACE, early_exit=ALTO, training={"epochs": 1}))
    worst = max(by_loss.warmup_losses, key=by_loss.warmup_losses.__getitem__)
    assert worst not in promoted(by_loss)
    graded({worst})
    (reported,) = Inside(fleet, tmp_path / "texts").run(placing(SPACE, early_exit=ALTO, **BY_GOOD))
    assert reported.warmup_losses == by_loss.warmup_losses
    assert promoted(reported) == [worst]
    assert set(cut(reported)) == {0, 1, 2, 3} - {worst}
    for job, evidence in cut(reported).items():
        assert (evidence["metric"], evidence["score"], evidence["last_kept_score"]) == ("good", 0, 1)
        assert evidence["val_loss"] == reported.warmup_losses[job] < reported.warmup_losses[worst]
        said = exit_sentence(ExitReason.UNDERPERFORMING, evidence)
        assert said.endswith("of 4 after warmup by good, only the best one goes on")


def test_every_job_is_scored_at_its_boundary_before_any_rank_is_decided(fleet, placing, tmp_path, graded):
    graded({3})
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE, early_exit=GUARDED, **BY_GOOD))
    found, steps = at_boundary(reported), reported.events[0].warmup_steps
    assert set(found) == {0, 1, 2, 3}
    last = max(reported.events.index(event) for event in found.values())
    decisions = [*reported.of(JobExited), *(e for e in reported.of(JobMoved) if e.status == JobStatus.TRAINING)]
    assert min(reported.events.index(event) for event in decisions) > last
    for job, event in found.items():
        assert (event.step, event.milestone, event.error) == (steps[job], steps[job], None)
        assert set(event.scores) == {"good", "chrf"}
        assert event.prompt_scores == {"good": [float(job == 3)] * event.prompts}, "of others the mean is enough"
    tokens = sum(event.tokens for event in reported.of(TextsEvaluated))
    assert sum(work.evaluation_tokens for work in reported.events if work.kind == "throughput") > tokens > 0


def test_among_jobs_that_the_metric_cannot_tell_apart_the_lowest_loss_goes_on(fleet, placing, tmp_path, graded):
    graded(set())
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE, early_exit=ALTO, **BY_GOOD))
    assert promoted(reported) == [min(reported.warmup_losses, key=reported.warmup_losses.__getitem__)]


def test_a_search_whose_texts_are_all_worse_than_the_bases_ends(fleet, placing, tmp_path, graded):
    graded({None})
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE, early_exit=GUARDED, **BY_GOOD))
    assert set(cut(reported)) == {0, 1, 2, 3}
    best = min(reported.warmup_losses, key=reported.warmup_losses.__getitem__)
    assert set(reported.manifests) == {best}
    assert {e["pattern"] for e in cut(reported).values()} == {"no job beats the base at the warmup boundary"}


@pytest.mark.parametrize("lost", [{2}, {0, 1, 2, 3}, {None, 0, 1, 2, 3}])
def test_jobs_whose_texts_fail_are_last_and_block_nobody(fleet, placing, tmp_path, graded, lost):
    graded({1, 2}, lost)
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE, early_exit=ALTO, **BY_GOOD))
    lowest = min(reported.warmup_losses, key=reported.warmup_losses.__getitem__)
    assert promoted(reported) == ([1] if lost == {2} else [lowest])
    assert {job for job, event in at_boundary(reported).items() if event.error} == lost - {None}
    for job, evidence in cut(reported).items():
        if lost == {2}:
            assert (evidence["metric"], evidence["score"]) == ("good", None if job == 2 else 0)
        else:
            assert (evidence["unscored_by"], "score" in evidence) == ("good", False)


def test_a_job_that_diverges_in_warmup_is_not_waited_for(fleet, placing, tmp_path, graded):
    graded({2})
    space = {**SPACE, "learning_rate": [1e-2, 1e20, 1e-4]}
    (reported,) = Inside(fleet, tmp_path).run(placing(space, early_exit=ALTO, **BY_GOOD))
    assert reported.ended[1].reason is ExitReason.DIVERGING
    assert set(at_boundary(reported)) == {0, 2}
    assert promoted(reported) == [2]


@pytest.mark.parametrize(
    ("space", "early_exit"),
    [(SPACE, {"policy": "none"}), ({**SPACE, "learning_rate": [1e-3]}, ALTO), (SPACE, {**ALTO, "keep_fraction": 1.0})],
)
def test_where_nobody_can_be_stopped_nothing_is_generated_at_the_boundary(fleet, placing, tmp_path, space, early_exit):
    (reported,) = Inside(fleet, tmp_path).run(placing(space, early_exit=early_exit, **BY_GOOD))
    assert not [event for event in reported.of(TextsEvaluated) if event.milestone is not None]
    assert {end.kind for end in reported.ended.values()} == {"job_completed"}


def test_asha_stops_by_the_metric_at_its_first_rung_and_by_losses_later(fleet, placing, tmp_path, graded):
    asha = {"policy": "asha", "warmup_fraction": 0.2, "reduction_factor": 2, "eval_every": 4}
    graded({1, 2})
    spec = {**BY_GOOD, "training": {"epochs": 4}}
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE, early_exit=asha, **spec))
    ends = {job: (end.step, getattr(end, "evidence", {}).get("metric")) for job, end in reported.ended.items()}
    assert {job for job, (step, metric) in ends.items() if (step, metric) == (8, "good")} == {0, 3}
    assert sorted(ends[job] for job in (1, 2)) == [(16, None), (36, None)]
    at_16 = {job: reported.curves[job, "val_loss"][16] for job in (1, 2)}
    assert ends[min(at_16, key=at_16.__getitem__)] == (36, None)


def test_endpoints_are_not_asked_about_texts_at_the_boundary(fleet, placing, tmp_path, graded):
    graded({1})
    judge = {"type": "endpoint", "name": "judge", "url": "https://judge.example.com/"}
    spec = {**BY_GOOD, "evaluation": {**GOOD, "metrics": [*GOOD["metrics"], judge]}}
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE, early_exit=ALTO, **spec))
    note = "metric 'judge' has no result: endpoints are not asked at the end of warmup"
    for event in reported.of(TextsEvaluated):
        at_cut = event.milestone is not None
        assert (note in event.notes, event.texts == []) == (at_cut, at_cut)


@pytest.mark.parametrize("more", [{"objective": {"type": "dpo"}}, {"precision": "nf4"}])
def test_under_dpo_and_on_a_quantised_base_the_metric_decides_too(fleet, placing, tmp_path, graded, more):
    graded({2})
    data = PAIRS if "objective" in more else None
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE, data, early_exit=ALTO, **BY_GOOD, **more))
    assert promoted(reported) == [2]


def test_no_rank_is_decided_before_the_bases_texts_are_scored(placing):
    """A job may have its scores from an earlier placement, before the base has its own."""
    placement, record = placing(SPACE, early_exit=GUARDED, **BY_GOOD), JobRecord(Stage.PARKED)
    right, wrong = (RowScores.of_results([result] * 4) for result in (1.0, 0.0))
    record = replace(record, progress=JobProgress(rung_losses=(1.0,)), milestone=3, text_scores=wrong)
    schedule = JobSchedule.of(placement.spec, placement.jobs[0].config, 36)
    task = PlacementRun(placement, Lease("p", 1, "t", 0.0), SimpleNamespace(trace=None))
    task.base_known = True
    task.runs = [JobRun(f"job_{n}", SimpleNamespace(key=JobKey("p", n)), placement.spec, schedule, record) for n in range(4)]
    assert certain_ranks(task) == []
    task.base_texts_scored(right)
    assert {verdict.evidence["base_score"] for _, verdict in certain_ranks(task)} == {1}


def decisions(reported) -> dict[int, tuple]:
    return {job: (end.kind, end.step, getattr(end, "evidence", None)) for job, end in reported.ended.items()}


def test_a_killed_task_makes_the_same_decisions_whatever_its_width(fleet, placing, tmp_path):
    """Killed once jobs stand at their boundary, then on two devices once a job is scored there, and placed anew."""
    placement = placing(SPACE, early_exit=GUARDED, **CHRF)
    (unbroken,) = Inside(fleet, tmp_path / "unbroken").run(placement)
    assert {evidence["metric"] for evidence in cut(unbroken).values()} == {"chrf"}
    fatal = [lambda told: JobStatus.PARKED in told.status.values(), at_boundary, lambda told: False]
    ends, texts = {}, []
    for number, kills in enumerate(fatal):
        key = f"again{number}"
        named = {"placement_id": key, "token": f"token-{key}", "device_indexes": [0, 1] if number == 1 else [0]}
        fleet.on_report = lambda told, report, kills=kills: setattr(told, "live", not kills(told))
        inside = Inside(fleet, tmp_path / key, worker_checkpoint_seconds=0.02)
        (reported,) = inside.run(placement.model_copy(update=named), paced=True)
        assert (reported.live, len(reported.ended)) == (number == 2, 4 if number == 2 else 0)
        texts += at_boundary(reported).items()
        ends.update(decisions(reported))
        placement = resumed(reported, key)
    assert ends == decisions(unbroken)
    assert {job for job, _ in texts} == {0, 1, 2, 3}
    assert all(event.prompt_scores == at_boundary(unbroken)[job].prompt_scores for job, event in texts)


@pytest.mark.parametrize("heard", [0, 1])
def test_asked_to_leave_before_all_are_scored_the_next_placement_asks_for_the_rest(
    fleet, placing, tmp_path, monkeypatch, heard
):
    """At least so many of the jobs have their scores by then: they are not asked again."""
    placement = placing(SPACE, early_exit=GUARDED, **CHRF)
    (unbroken,) = Inside(fleet, tmp_path / "unbroken").run(placement)
    placement = placement.model_copy(update={"placement_id": "leaves", "token": "token-leaves"})
    executors, real, left = [], AskedTexts.report, []

    def reporting(self, completions, scoring):
        if self.at_boundary and len(left) == heard:
            executors[0].handle_command(Detach(placement_id="leaves", keep=True))
        left.extend([self] if self.at_boundary else [])
        real(self, completions, scoring)

    monkeypatch.setattr(AskedTexts, "report", reporting)
    (first,) = Inside(fleet, tmp_path / "first").run(placement, prepare=executors.append)
    monkeypatch.setattr(AskedTexts, "report", real)
    assert first.of(Detached)
    assert (cut(first), promoted(first)) == ({}, [])
    known = set(at_boundary(first))
    assert heard < len(known) < 4
    assert set(first.status.values()) == {JobStatus.PARKED}
    (second,) = Inside(fleet, tmp_path / "second").run(resumed(first, "rest"))
    assert set(at_boundary(second)) == {0, 1, 2, 3} - known
    assert decisions(second) == decisions(unbroken)


def test_a_neighbour_steps_between_any_two_passes_of_the_texts(fleet, placing, tmp_path, monkeypatch):
    """And neither changes the other."""
    ours = placing(SPACE, early_exit=GUARDED, **{**CHRF, "evaluation": {**CHRF["evaluation"], "max_new_tokens": 30}})
    neighbour = placing(
        {**SPACE, "learning_rate": [1e-3]}, rows(40, seed=3), training={"epochs": 8}, early_exit={"policy": "none"}
    )
    alone = [Inside(fleet, tmp_path / str(at)).run(one)[0] for at, one in enumerate((ours, neighbour))]
    told, step, generate, clock = [], Replicas.step, TextGeneration.advance, [0.0]

    def stepping(self, jobs, *how):
        told.append({job.key.placement for job, _ in jobs})
        (stepped,), lost = step(self, jobs, *how)
        stepped.seconds = 10.0
        return [stepped], lost

    def generating(self, room):
        told.append("pass")
        clock[0] += 1.0  # a step earns less
        return generate(self, room)

    def timed(executor):
        executor._generation._clock = lambda: clock[0]

    monkeypatch.setattr(Replicas, "step", stepping)
    monkeypatch.setattr(TextGeneration, "advance", generating)
    pair = [
        one.model_copy(update={"placement_id": f"s{at}", "token": f"token-s{at}"}) for at, one in enumerate((ours, neighbour))
    ]
    together = Inside(fleet, tmp_path / "together").run(*pair, prepare=timed, together=True)
    theirs = [at for at, one in enumerate(told) if "s1" in one]
    beside = told[theirs[0] : theirs[-1]]
    assert ("pass", {"s1"}) in pairwise(beside), "it stepped while all of ours were parked"
    assert all((before, after) != ("pass", "pass") for before, after in pairwise(beside))
    assert decisions(together[0]) == decisions(alone[0])
    assert together[1].curves == alone[1].curves
