"""What the steps of one replica have shown of how long they take: of all, and of a task alone. Remembers sums, no steps."""

import math

from worker.policy.step_time import PRIOR, STALL, StepLoad, StepModel, StepTimes

_REFIT_STEPS = 16  # measured steps between two fits of the model
_COMPANY = 0.05  # what a step of several tasks counts beside one of a task alone, where it is asked what tasks take alone
_KEPT = 0.998  # of what was seen alone, with each step in company: half after 350


class StepPace:
    def __init__(self) -> None:
        self._all = self._alone = StepTimes.empty()  # of all steps, and of those of a task alone
        self._model: StepModel | None = None  # fitted after so many steps
        self._alone_model: StepModel | None = None
        self._model_at = 0
        self._fastest = math.inf  # least seconds of a step, over those of the prior

    @property
    def known(self) -> bool:
        """Whether enough steps were measured to say how long longer ones take."""
        return self._all.count >= _REFIT_STEPS

    @property
    def model(self) -> StepModel:
        """How long steps take; a guess until some were measured."""
        self._fit()
        return self._model or PRIOR

    @property
    def alone_model(self) -> StepModel:
        """How long a task's step takes alone: what steps of one task say, and where these leave it open, those of several. By
        all steps alike small tasks were predicted a quarter too long, and so were taken for less slowed than they were."""
        self._fit()
        return self._alone_model or PRIOR

    def _fit(self) -> None:
        if self._model is None or self._all.count >= self._model_at + _REFIT_STEPS:
            self._model, self._model_at = self._all.model(), self._all.count
            self._alone_model = self._alone.beside(self._all, _COMPANY).model()

    def learn(self, load: StepLoad, seconds: float, alone: bool) -> None:
        """A step took so long. alone: it was of one task, and no other step ran at the same time. Raises ValueError where it
        took no time."""
        self._all = self._all.learned(load, seconds)
        self._alone = self._alone.learned(load, seconds) if alone else self._alone.aged(_KEPT)

    def without_stall(self, load: StepLoad, seconds: float) -> float | None:
        """Of these seconds of a step, those that say how fast the device is: of a stall no more than such a step may take, by
        the fastest of the first few, later by the fit. None for the first step of all, which compiles."""
        guess, first = PRIOR.seconds(load), math.isinf(self._fastest)
        known = self.model
        usual = known.seconds(load) if known is not PRIOR else guess * self._fastest
        self._fastest = min(self._fastest, seconds / guess)
        return None if first else min(seconds, STALL * usual)
