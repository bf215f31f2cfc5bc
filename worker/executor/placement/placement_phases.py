"""When the phases of one placement were, for its task's trace. The reports take them to the service, which exports them: a node
needs no way to the collector. Records nothing for a placement that is not traced."""

import time
from collections.abc import Callable, Iterable

from contract.messages.span_messages import PhaseSpan

MOST_PHASES = 512  # of a placement, besides those of training; later ones are left out


class PlacementPhases:
    """`record` gets each phase that is over; None: the placement is not traced. `over` may be called by any thread, the others
    by the training loop alone."""

    def __init__(self, record: Callable[[PhaseSpan], None] | None) -> None:
        self._record, self._recorded = record, 0
        self._training: str | None = None  # the phase of training under way: warmup or train
        self._began, self._counts = 0.0, dict[str, float]()

    def over(self, name: str, began: float, job: int | None = None, /, **counts: float) -> float:
        """A phase that `began` (epoch seconds) is over. Returns the present moment."""
        now = time.time()
        if self._recorded < MOST_PHASES:
            self._recorded += 1
            self._tell(PhaseSpan(name=name, began=began, ended=now, job=job, counts=counts))
        return now

    def stepped(self, warm_up: Iterable[bool], seconds: float, tokens: int) -> None:
        """A step of `seconds`. All steps while some job warms up are one phase, and all later ones are another. warm_up:
        whether each job does; read only where the placement is traced."""
        if self._record is None:
            return
        phase = "warmup" if any(warm_up) else "train"
        if phase != self._training:
            self.training_over()
            self._training, self._began = phase, time.time() - seconds
        self._add(steps=1, tokens=tokens, step_seconds=seconds)

    def evaluated(self, seconds: float, tokens: int) -> None:
        """An evaluation of one of its jobs, between steps."""
        self._add(evaluations=1, evaluation_tokens=tokens, evaluation_seconds=seconds)

    def training_over(self) -> None:
        """No further steps follow in this phase."""
        if self._training is not None:
            self._tell(PhaseSpan(name=self._training, began=self._began, ended=time.time(), counts=self._counts))
            self._training, self._counts = None, {}

    def _tell(self, phase: PhaseSpan) -> None:
        if self._record is not None:
            self._record(phase)

    def _add(self, **more: float) -> None:
        if self._training is not None:
            for name, count in more.items():
                self._counts[name] = self._counts.get(name, 0) + count
