"""A cell of benchmarks/parallel.py: the steps of one placement, as its executor tells of them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from worker.replicas.packed_step import Stepped

WARM_STEPS, WARM_SECONDS = 20, 5.0  # kernels are compiled, memory is reserved, and micro-batches find their length
LEAST_STEPS = 6
COMPARED = 5  # steps whose losses are compared between widths


@dataclass
class Cell:
    """Steps of one placement. times: when each ended. tokens, passes: of each. losses: of each job that stepped, its first.
    device_seconds: of each, what the devices' own steps took, summed over the devices (see Work). met: the last step of each
    window."""

    seconds: float
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    losses: dict[int, list[float]] = field(default_factory=dict)
    device_seconds: list[float] = field(default_factory=list)
    width: int = 1  # devices
    met: list[int] = field(default_factory=list)

    def note(self, steps: Sequence[Stepped], met: bool = True) -> None:
        """Steps that were told of just now, one after another in equal times. met: they are the last ones of a window."""
        now = time.monotonic()
        before = self.times[-1] if self.times else now
        for place, stepped in enumerate(steps, 1):
            self.times.append(before + (now - before) * place / len(steps))
            self.tokens.append(sum(work.tokens for work in stepped.work.values()))
            self.passes.append(stepped.passes)
            self.device_seconds.append(sum(work.device_seconds for work in stepped.work.values()))
            for key, loss in stepped.losses.items():
                if len(self.losses.setdefault(key.job, [])) < COMPARED:
                    self.losses[key.job].append(loss)
        if met:
            self.met.append(len(self.times) - 1)

    @property
    def warm(self) -> int | None:
        """The last step of the warmup, once that is over: as the replicas meet, since within a window the first step, which may
        have compiled a kernel, counts as long as the last."""
        return next((place for place in self.met if self._warm_by(place)), None)

    def _warm_by(self, place: int) -> bool:
        return place >= WARM_STEPS and self.times[place] >= self.times[0] + WARM_SECONDS

    @property
    def due(self) -> bool:
        """Whether the warmup, or the cell, ends when the replicas meet next."""
        if (first := self.warm) is None:
            return self._warm_by(len(self.times) - 1)
        return len(self.times) - 1 - first >= LEAST_STEPS and self.times[-1] - self.times[first] >= self.seconds

    @property
    def done(self) -> bool:
        return self.warm is not None and self.due and self.met[-1] == len(self.times) - 1

    def row(self) -> dict[str, Any]:
        first = self.warm
        assert first is not None
        steps, seconds = len(self.times) - 1 - first, self.times[-1] - self.times[first]
        each = sorted(b - a for a, b in zip(self.times[first:], self.times[first + 1 :], strict=False))
        tokens = sum(self.tokens[first + 1 :])
        return {
            "jobs": len(self.losses), "ms": 1e3 * seconds / steps, "least_ms": 1e3 * each[0], "most_ms": 1e3 * each[-1],
            "steps": steps, "median_ms": 1e3 * each[steps // 2], "tokens_per_step": tokens / steps,
            "tokens_per_s": tokens / seconds, "passes_per_step": sum(self.passes[first + 1 :]) / steps,
            "busy": sum(self.device_seconds[first + 1 :]) / (self.width * seconds),
        }  # fmt: skip
