"""What one placement's steps and evaluations took since that was last reported. Reports nothing itself."""

from dataclasses import dataclass

from contract.messages.report_messages import Throughput
from worker.boot_clock import boot_now
from worker.replicas.packed_step import Work

_SECONDS = 1.0  # between reports
_NOTHING = Throughput(steps=0, tokens=0, seconds=0.0, micro_batches=0, forwards=0, share_seconds=0.0)


@dataclass(frozen=True)
class Slowdown:
    """How many times slower than alone a placement has been, and the placements that it was measured beside."""

    times: float
    beside: tuple[str, ...]


class WorkDone:
    """slowdown: of late, beside others; None: the placement is alone, or nothing is known."""

    def __init__(self) -> None:
        self.slowdown: Slowdown | None = None
        self._done, self._taken_at = _NOTHING, boot_now()

    @property
    def due(self) -> bool:
        """Whether it was last taken _SECONDS ago, or earlier."""
        return boot_now() - self._taken_at >= _SECONDS

    def step(self, seconds: float, share: float, work: Work) -> None:
        """A packed step of `seconds`, `share` of which was the placement's, by tokens."""
        self._done = self._done.model_copy(
            update={
                "steps": self._done.steps + 1,
                "tokens": self._done.tokens + work.tokens,
                "rows": self._done.rows + work.adapter_rows,
                "seconds": self._done.seconds + seconds,
                "micro_batches": self._done.micro_batches + work.micro_batches,
                "forwards": self._done.forwards + work.forwards,
                "device_steps": (self._done.device_steps or 0) + work.device_steps,
                "device_seconds": (self._done.device_seconds or 0.0) + work.device_seconds,
                "share_seconds": (self._done.share_seconds or 0.0) + seconds * share,
            }
        )

    def evaluation(self, seconds: float, tokens: int) -> None:
        self._done = self._done.model_copy(
            update={
                "evaluation_tokens": self._done.evaluation_tokens + tokens,
                "evaluation_seconds": self._done.evaluation_seconds + seconds,
            }
        )

    def take(self) -> Throughput | None:
        """What was done since this was last called; None: nothing."""
        self._taken_at = boot_now()
        told, self._done = self._done, _NOTHING
        if told == _NOTHING:
            return None
        if self.slowdown is not None:
            told = told.model_copy(update={"slowdown": self.slowdown.times, "beside": self.slowdown.beside})
        return told
