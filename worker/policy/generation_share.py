"""How much of an executor's time completions may take beside training: a share of what steps take, saved up to a bound. Pure.

Each step earns seconds of generation; a pass spends what it took, and may overdraw by its own length. So over any stretch of
training, completions take at most the share, the bound and one pass.
"""

from dataclasses import dataclass

SAVED_SECONDS = 0.25  # at most; what a first token may use at once


@dataclass
class GenerationShare:
    """share: seconds of generation for each second of training."""

    share: float
    _saved: float = SAVED_SECONDS

    def trained(self, seconds: float) -> None:
        """A training step took so long."""
        self._saved = min(SAVED_SECONDS, self._saved + self.share * seconds)

    def generated(self, seconds: float) -> None:
        """A pass took so long, while jobs train."""
        self._saved -= seconds

    @property
    def allows(self) -> bool:
        """Whether a pass may run now, beside training."""
        return self._saved > 0
