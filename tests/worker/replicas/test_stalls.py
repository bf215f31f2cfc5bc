"""What a device tells of the time of its steps, which the planner learns from: not that a kernel compiled."""

from typing import Any

import pytest

from worker.model.plain.trainer import Trainer
from worker.policy.step_time import STALL
from worker.replicas.device_replica import Replica
from worker.replicas.packed_step import Stepped, Work


class Told(Replica):
    """A replica that is told how long its steps took."""

    def __init__(self) -> None:
        nothing: Any = None
        super().__init__(Trainer.__new__(Trainer), nothing)

    def step(self, seconds: float, tokens: int = 100) -> tuple[int, float]:
        """(device_steps, device_seconds) of a step of so many tokens."""
        stepped = Stepped({}, seconds)
        stepped.work, stepped.passes = {"p": Work(tokens=tokens, adapter_rows=8)}, 1
        self._leave_out_stalls(stepped)
        self.times = self.times.learned(stepped.load, seconds)
        work = stepped.work["p"]
        return work.device_steps, work.device_seconds


def test_the_first_step_of_a_device_does_not_count() -> None:
    told = Told()
    assert told.step(7.0) == (0, 0.0)
    assert told.step(0.012) == (1, pytest.approx(0.012))


def test_a_stall_counts_as_a_slow_step_before_and_after_there_is_a_fit() -> None:
    told = Told()
    told.step(7.0)
    told.step(0.010)
    assert told.step(4.0) == (1, pytest.approx(STALL * 0.010))
    for _ in range(40):
        told.step(0.010)
    assert told.step(4.0) == (1, pytest.approx(STALL * 0.010, rel=0.05))
    assert told.step(0.015) == (1, pytest.approx(0.015)), "a slower step is none"
