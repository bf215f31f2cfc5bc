"""A sweep's record: every evaluation of every job, row by row, and its file. Trains nothing (sweep_training.py does)."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.row_scores import RowScores

Totals = NDArray[np.float32]


@dataclass
class Curve:
    """One job's evaluations. totals: by evaluation, of each validation row and then of each test row; empty while it trains.
    mean: those of the mean of its best weights after its last step, where it kept an adapter."""

    job: int
    config: dict[str, Any]
    total_steps: int
    steps: list[int] = field(default_factory=list)
    ema: list[float] = field(default_factory=list)
    totals: list[Totals] = field(default_factory=list)
    mean: Totals | None = None
    broken_at: int | None = None  # the step with a training loss that is not finite

    @property
    def diverged_at(self) -> int | None:
        """The step from which on there is nothing finite: its training loss was not, or the validation loss after the step
        before it, the last that was evaluated of a job in full training."""
        if self.broken_at is None and self.steps and self.steps[-1] < self.total_steps:
            return self.steps[-1] + 1
        return self.broken_at

    @property
    def last_step(self) -> int:
        """The step of its last evaluation."""
        return self.steps[-1] if self.steps else 0

    def at(self, step: int) -> tuple[float, Totals]:
        """(smoothed training loss, totals) after this step. Raises ValueError if it was not evaluated then."""
        place = self.steps.index(step)
        return self.ema[place], self.totals[place]


@dataclass
class Sweep:
    """weights: of the rows, validation rows first: their labels, or 1 for pairs. base: the base's own totals. lengths: tokens
    of each row. tokens: trained on. machine: which trained it, as of result_file.this_machine. reasons, samples: how each job
    ended, and what it trained on."""

    pair: str
    policy: str
    seed: int
    train_rows: int
    tokens_per_row: float
    validation_rows: int
    weights: list[int]
    lengths: list[int]
    base: list[float]
    curves: list[Curve]
    machine: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    tokens: int = 0
    reasons: dict[int, str] = field(default_factory=dict)
    samples: dict[int, int] = field(default_factory=dict)

    @property
    def test_rows(self) -> int:
        return len(self.weights) - self.validation_rows

    def validation(self, totals: Totals | Sequence[float], rows: int) -> RowScores | None:
        """Scores of the first so many validation rows; None if any is not finite."""
        return self._scores(totals, 0, rows)

    def test(self, totals: Totals | Sequence[float]) -> RowScores | None:
        """Scores of the test part, which no policy and no selection sees."""
        return self._scores(totals, self.validation_rows, len(self.weights))

    def _scores(self, totals: Totals | Sequence[float], first: int, last: int) -> RowScores | None:
        part = np.asarray(totals[first:last], np.float64)
        if not np.isfinite(part).all():
            return None
        return RowScores(totals=part.tolist(), weights=self.weights[first:last])

    def validation_tokens(self, rows: int) -> int:
        return sum(self.lengths[:rows])

    def redrawn(self, seed: int) -> "Sweep":
        """The same training, with other validation rows among those that it did not read; the rest are the test part. The mean
        of a job's best weights stays the one that the rows of before chose."""
        order = np.random.default_rng(seed).permutation(len(self.weights))
        curves = [
            replace(curve, totals=[one[order] for one in curve.totals], mean=None if curve.mean is None else curve.mean[order])
            for curve in self.curves
        ]
        rows = {name: [getattr(self, name)[row] for row in order] for name in ("weights", "lengths", "base")}
        return replace(self, curves=curves, **rows)

    def write(self, path: Path) -> None:
        """Write the sweep as one file, whole or not at all."""
        curves = [asdict(replace(curve, totals=[], mean=None)) for curve in self.curves]
        said = {name: value for name, value in vars(self).items() if name != "curves"} | {"curves": curves}
        arrays = {f"job{curve.job}": np.array(curve.totals, np.float32) for curve in self.curves}
        arrays |= {f"mean{curve.job}": curve.mean for curve in self.curves if curve.mean is not None}
        new = path.with_suffix(".new.npz")
        np.savez_compressed(new, header=np.frombuffer(json.dumps(said).encode(), np.uint8), **arrays)
        os.replace(new, path)

    @classmethod
    def read(cls, path: Path) -> "Sweep":
        with np.load(path) as file:
            said = json.loads(file["header"].tobytes())
            curves = [Curve(**curve) for curve in said.pop("curves")]
            for curve in curves:
                curve.totals = list(file[f"job{curve.job}"])
                curve.mean = file.get(f"mean{curve.job}")
        counts = {name: {int(job): value for job, value in said.pop(name).items()} for name in ("reasons", "samples")}
        return cls(**said, curves=curves, **counts)
