"""How much of an executor's time generation may take beside training: a share of what steps take. Pure.

A token bucket for each class of generation: texts that tasks have evaluated, and completions that tenants ask for. Each step
fills both with seconds, by the number of tenants that each serves, up to SAVED_SECONDS; what one cannot save goes to the other.
A pass spends what it took, and may overdraw its own bucket by its length. So over any stretch of training, both together take
at most the share, what was saved, and a pass of each; neither keeps the other from its part; and a first completion finds its
savings whole, however long an evaluation has been going on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

SAVED_SECONDS = 0.25  # of a class at most, or what one step earned; what a first token may use at once


class GenerationClass(StrEnum):
    EVALUATIONS = "evaluations"
    COMPLETIONS = "completions"


@dataclass
class GenerationShare:
    """share: seconds of generation for each second of training."""

    share: float
    _saved: dict[GenerationClass, float] = field(default_factory=lambda: dict.fromkeys(GenerationClass, SAVED_SECONDS))

    def trained(self, seconds: float, tenants: Mapping[GenerationClass, int]) -> None:
        """A training step took so long. tenants: whom each class serves now; an idle one saves as if it served one."""
        earned = self.share * seconds
        weights = {kind: max(1, tenants[kind]) for kind in GenerationClass}
        bound = max(SAVED_SECONDS, earned)
        gets = {kind: earned * weight / sum(weights.values()) for kind, weight in weights.items()}
        for kind, other in (tuple(GenerationClass), tuple(reversed(GenerationClass))):
            beyond = max(0.0, self._saved[kind] + gets[kind] - bound)
            gets[kind] -= beyond
            gets[other] += beyond
        self._saved = {kind: min(bound, saved + gets[kind]) for kind, saved in self._saved.items()}

    def generated(self, kind: GenerationClass, seconds: float) -> None:
        """A pass of this class took so long, while jobs train."""
        self._saved[kind] -= seconds

    def allows(self, kind: GenerationClass) -> bool:
        """Whether a pass of this class may run now, beside training."""
        return self._saved[kind] > 0
