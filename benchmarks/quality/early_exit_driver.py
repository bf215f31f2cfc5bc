"""Drives early exit over a sweep, step by step, from row scores of a live or a recorded run. Trains nothing.

It asks the executor's own policies at the executor's own moments about the rows that the executor would read, counts what it
would read, and chooses the winner as the service does.
"""

import math
from dataclasses import dataclass, field

from benchmarks.quality.recorded_sweep import Sweep, Totals
from contract.job_schedule import JobSchedule
from contract.row_scores import RowScores
from contract.task_spec import TaskSpec
from contract.validation_parts import validation_parts
from service.tasks.selection import Candidate, Selection, choose
from worker.policy.early_exit.policy_interface import Evidence, History, Standing, Verdict
from worker.policy.early_exit.policy_selection import policy_of
from worker.policy.job_record import AVERAGED


@dataclass
class Entrant:
    """A job of the sweep. reason: how it ended (a verdict's, or "completed"), None while it trains."""

    index: int
    batch_size: int
    rank: int
    schedule: JobSchedule
    step: int = 0
    history: History = field(default_factory=History)
    rung_losses: list[float] = field(default_factory=list)
    boundary_scores: RowScores | None = None
    boundary_texts: RowScores | None = None
    settled: int = 0
    best: float = math.inf  # of its trend
    best_step: int = 0
    best_totals: Totals | None = None
    plain_totals: Totals | None = None  # of the best weights, where `best_totals` are of a mean
    lowest: list[tuple[float, int]] = field(default_factory=list)  # (loss, step) of the weights that are kept, by loss
    reason: str | None = None
    evidence: Evidence = field(default_factory=dict)
    keeps_adapter: bool = True

    @property
    def waits(self) -> bool:
        """Whether the job is parked at a rung until its rank there is final."""
        return len(self.rung_losses) > self.settled

    @property
    def due(self) -> bool:
        return self.schedule.evaluates_at(self.step)

    @property
    def ends_in_a_mean(self) -> bool:
        """Whether it has ended, and the mean of its best weights is to be evaluated: as the executor does."""
        return self.reason is not None and self.keeps_adapter and len(self.lowest) > 1

    @property
    def _warms_up(self) -> bool:
        return self.schedule.has_boundary and not self.settled

    def note(self, loss: float) -> None:
        """Its trend's loss now."""
        most = 1 if self._warms_up else AVERAGED
        found = [(loss, self.step)] if math.isfinite(loss) else []
        self.lowest = sorted([*self.lowest, *found])[:most]


def schedule_of(spec: TaskSpec, job: int, train_rows: int, like: TaskSpec | None) -> JobSchedule:
    """The job's schedule under `spec`; with `like`, its trend is evaluated as often as under that one."""
    config = spec.jobs()[job]
    own = JobSchedule.of(spec, config, train_rows)
    return own if like is None else own.model_copy(update={"eval_every": JobSchedule.of(like, config, train_rows).eval_every})


class EarlyExitDriver:
    """`like`: whose interval of evaluations the policy has, where policies are to be compared under one. base_texts: what the
    base alone scores by the spec's metric, where one decides the cut."""

    def __init__(self, spec: TaskSpec, sweep: Sweep, like: TaskSpec | None = None) -> None:
        self._sweep, rows = sweep, sweep.train_rows
        self.entrants = {
            job: Entrant(job, min(config.batch_size, rows), config.rank, schedule_of(spec, job, rows, like))
            for job, config in enumerate(spec.jobs())
        }
        cost = sum(sweep.lengths[: sweep.validation_rows]) / sweep.validation_rows / sweep.tokens_per_row
        self.parts = validation_parts(spec, sweep.train_rows, sweep.validation_rows, cost)
        self.base = sweep.validation(sweep.base, self.parts.full)
        self.evaluated_tokens = sweep.validation_tokens(self.parts.full)  # the base's
        self.base_texts: RowScores | None = None
        self._metric = spec.cut_metric
        self._policy = policy_of(spec.early_exit, self._metric)

    @property
    def active(self) -> list[Entrant]:
        """Entrants that take the next step."""
        return [e for e in self.entrants.values() if e.reason is None and not e.waits]

    def evaluated(self, job: int, ema: float, totals: Totals) -> None:
        """Record a job's evaluation after its step, and apply the verdict that depends on this job alone."""
        e, parts = self.entrants[job], self.parts
        full = e.step in e.schedule.rungs and e.schedule.full_at_rungs
        self.evaluated_tokens += self._sweep.validation_tokens(parts.full if full else parts.trend)
        trend, whole = self._sweep.validation(totals, parts.trend), self._sweep.validation(totals, parts.full)
        loss = trend.mean if trend is not None and (whole is not None or not full) else math.nan
        if loss < e.best:
            e.best, e.best_step, e.best_totals = loss, e.step, totals
        e.note(loss)
        e.history, verdict = self._policy.on_evaluation(e.history, ema, loss)
        if math.isfinite(loss) and e.step >= e.schedule.total_steps:
            self.end(e, "completed")
        elif verdict is not None:
            self._end_by(e, verdict)
        elif e.step in e.schedule.rungs:
            e.rung_losses.append(whole.mean if full and whole is not None else loss)
            if full and e.step == e.schedule.rungs[0]:
                e.boundary_scores = whole

    def _end_by(self, e: Entrant, verdict: Verdict) -> None:
        e.evidence, ranked_out = verdict.evidence, verdict.reason.value == "underperforming"
        e.keeps_adapter = not ranked_out or verdict.keeps_adapter_though_ranked_out
        self.end(e, verdict.reason.value)

    def end(self, e: Entrant, reason: str) -> None:
        """The job ends. One that keeps its adapter gets a full evaluation, unless it was at its best step."""
        e.reason = reason
        if e.keeps_adapter and e.best_totals is not None and not (e.boundary_scores and e.best_step in e.schedule.rungs[:1]):
            self.evaluated_tokens += self._sweep.validation_tokens(self.parts.full)

    def averaged(self, job: int, totals: Totals) -> None:
        """What the mean of its best weights scores, of a job that has ended: its adapter where its trend is lower."""
        e = self.entrants[job]
        trend = self._sweep.validation(totals, self.parts.trend)
        self.evaluated_tokens += self._sweep.validation_tokens(self.parts.trend)
        if trend is not None and trend.mean < e.best:
            e.best_totals, e.plain_totals = totals, e.best_totals

    @property
    def texts_due(self) -> list[Entrant]:
        """Entrants whose texts are to be scored before ranks are decided: where a metric decides the cut, those who stand at it
        once every warmup has ended."""
        here = self._contenders
        if self._metric is None or not all(e.rung_losses for e in here):
            return []
        return [e for e in here if e.waits and e.reason is None and e.settled == 0 and e.boundary_texts is None]

    @property
    def _contenders(self) -> list[Entrant]:
        return [e for e in self.entrants.values() if e.schedule.has_boundary and (e.rung_losses or e.reason is None)]

    def decide_ranks(self) -> None:
        """Apply the verdicts on jobs that wait at a rung."""
        here = self._contenders
        if not any(e.waits and e.reason is None for e in here):
            return
        standings = [Standing(e.index, tuple(e.rung_losses), e.boundary_scores, e.boundary_texts) for e in here]
        settled = self._policy.decide_ranks(standings, self.base, self.base_texts)
        for e in here:
            if e.waits and e.reason is None and e.index in settled:
                verdict = settled[e.index]
                if verdict is None:
                    e.settled = len(e.rung_losses)
                else:
                    self._end_by(e, verdict)

    def candidates(self) -> list[Candidate]:
        """The jobs that kept an adapter, with their scores in a full evaluation."""
        kept = (e for e in self.entrants.values() if e.keeps_adapter and e.best_totals is not None)
        return [candidate_of(self._sweep, e, self.parts.full) for e in kept]

    @property
    def ranked_out(self) -> int:
        """How many were stopped for ranking behind others."""
        return sum(e.reason == "underperforming" and not e.keeps_adapter for e in self.entrants.values())

    def chosen(self) -> tuple[Entrant, Selection]:
        """The winner, as the service picks it."""
        winner, selection = choose(self.candidates(), self.base, ranked_out=self.ranked_out)
        return self.entrants[winner.index], selection


def candidate_of(sweep: Sweep, e: Entrant, rows: int) -> Candidate:
    assert e.best_totals is not None, "only a job with a finite evaluation is a candidate"
    scores = sweep.validation(e.best_totals, rows)
    return Candidate(e.index, e.rank, scores.mean if scores is not None else math.inf, scores)
