"""Drives early exit over a sweep, step by step, from losses of a live or a recorded run. Trains nothing.

It asks the executor's own policies at the executor's own moments, and records what the executor would report.
"""

import math
from dataclasses import dataclass, field

from contract.task_spec import Schedule, TaskSpec
from worker.policy.early_exit.policy_interface import Evidence, History, Standing
from worker.policy.early_exit.policy_selection import policy_of


@dataclass
class Entrant:
    """A job of the sweep. reason: how it ended (a verdict's, or "completed"), None while it trains."""

    index: int
    batch_size: int
    schedule: Schedule
    step: int = 0
    history: History = field(default_factory=History)
    rung_losses: list[float] = field(default_factory=list)
    settled: int = 0
    evaluations: int = 0
    best: float = math.inf
    best_step: int = 0
    reason: str | None = None
    evidence: Evidence = field(default_factory=dict)

    @property
    def waits(self) -> bool:
        """Whether the job is parked at a rung until its rank there is final."""
        return len(self.rung_losses) > self.settled

    @property
    def due(self) -> bool:
        return self.schedule.evaluates_at(self.step)


class Referee:
    def __init__(self, spec: TaskSpec, train_rows: int, jobs: range) -> None:
        configs = spec.jobs()
        self.entrants = {
            job: Entrant(job, min(configs[job].batch_size, train_rows), Schedule.of(spec, configs[job], train_rows))
            for job in jobs
        }
        self._policy = policy_of(spec.early_exit)

    @property
    def active(self) -> list[Entrant]:
        """Entrants that take the next step."""
        return [e for e in self.entrants.values() if e.reason is None and not e.waits]

    def evaluated(self, job: int, ema: float, val_loss: float) -> None:
        """Record a job's evaluation after its step, and apply the verdict that depends on this job alone."""
        e = self.entrants[job]
        e.evaluations += 1
        if val_loss < e.best:
            e.best, e.best_step = val_loss, e.step
        e.history, verdict = self._policy.on_evaluation(e.history, ema, val_loss)
        if math.isfinite(val_loss) and e.step >= e.schedule.total_steps:
            e.reason = "completed"
        elif verdict is not None:
            e.reason, e.evidence = verdict.reason.value, verdict.evidence
        elif e.step in e.schedule.rungs:
            e.rung_losses.append(val_loss)

    def decide_ranks(self) -> None:
        """Apply the verdicts on jobs that wait at a rung."""
        here = [e for e in self.entrants.values() if e.schedule.boundary and (e.rung_losses or e.reason is None)]
        if not any(e.waits and e.reason is None for e in here):
            return
        settled = self._policy.decide_ranks([Standing(e.index, tuple(e.rung_losses)) for e in here])
        for e in here:
            if e.waits and e.reason is None and e.index in settled:
                verdict = settled[e.index]
                if verdict is None:
                    e.settled = len(e.rung_losses)
                else:
                    e.reason, e.evidence = verdict.reason.value, verdict.evidence

    def leader(self) -> Entrant:
        """The winner, as the service picks it: the lowest validation loss among jobs not ranked out, ties to the lower
        index."""
        kept = [e for e in self.entrants.values() if e.reason != "underperforming"]
        return min(kept, key=lambda e: (e.best, e.index))
