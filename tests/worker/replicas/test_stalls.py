"""What a device learns and tells of the time of its steps: not that a kernel compiled, and how long a task's take alone."""

from pathlib import Path

import pytest

from worker.adapters.capacity_tracker import CapacityTracker
from worker.model.plain.trainer import Trainer
from worker.policy.adapter_memory_model import Capacity, MemoryModel
from worker.policy.step_time import PRIOR, STALL, StepLoad
from worker.replicas.device_replica import Replica
from worker.replicas.packed_step import Stepped, Work


class Told(Replica):
    """A replica that is told how long its steps took."""

    def __init__(self) -> None:
        tracker = CapacityTracker(Capacity(MemoryModel(0, 0, 1), 10**9, 4096))
        super().__init__(Trainer.__new__(Trainer), tracker, Path("none is written"))

    def step(self, seconds: float, *tokens: int) -> tuple[int, float]:
        """(device_steps, device_seconds) of a step of tasks of so many tokens each."""
        stepped = Stepped({}, seconds)
        stepped.work, stepped.passes = {str(at): Work(tokens=own, adapter_rows=8) for at, own in enumerate(tokens or (100,))}, 1
        self._learn(stepped)
        work = stepped.work["0"]
        return work.device_steps, work.device_seconds

    def alone(self, tokens: int) -> float:
        """Seconds that a task's step of so many tokens is taken to take alone."""
        return self.alone_model.seconds(StepLoad(1, tokens, 8, 0))


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


def test_what_a_step_takes_alone_is_learned_from_steps_of_one_task() -> None:
    """In company steps cost more (passes are padded, the host does more), and none is as short as the shortest task's."""
    told = Told()
    assert told.alone(154) == PRIOR.seconds(StepLoad(1, 154, 8, 0))
    for _ in range(100):
        told.step(4.6e-3 + 7.6e-6 * 154, 154)
    for _ in range(60):
        for company in ((154, 306), (154, 610), (154, 306, 610), (306, 610, 610, 154)):
            told.step(1.25 * (4.6e-3 + 7.6e-6 * sum(company)), *company)
    assert told._pace.model.seconds(StepLoad(1, 154, 8, 0)) > 1.05 * told.alone(154)
    assert told.alone(154) == pytest.approx(4.6e-3 + 7.6e-6 * 154, rel=0.01)
    assert told.alone(610) == pytest.approx(4.6e-3 + 7.6e-6 * 610, rel=0.15), "never alone: as those in company have it"


def test_of_a_task_that_was_never_alone_steps_in_company_tell() -> None:
    told = Told()
    for tokens in (200, 400, 800, 1600) * 10:
        told.step(5e-3 + 8e-6 * 2 * tokens, tokens, tokens)
    assert told.alone(400) == pytest.approx(5e-3 + 8e-6 * 400, rel=0.2)


def test_what_steps_took_alone_before_is_forgotten_in_company() -> None:
    """They were launched one by one then, and are replayed since."""
    told = Told()
    for _ in range(30):
        told.step(23e-3, 400)
    for tokens in (200, 400, 800, 1600) * 500:
        told.step(10e-3 + 8e-6 * 2 * tokens, tokens, tokens)
    assert told.alone(400) == pytest.approx(13.2e-3, rel=0.2)


def test_preferences_are_left_out_of_what_a_step_takes() -> None:
    told = Told()
    for tokens in (200, 400, 800, 1600) * 10:
        stepped = Stepped({}, 30e-3 + 5e-3 + 8e-6 * tokens, preference_seconds=30e-3, preferring={"0": tokens})
        stepped.work, stepped.passes = {"0": Work(tokens=tokens, adapter_rows=8)}, 1
        told._learn(stepped)
    assert told.alone(400) == pytest.approx(8.2e-3, rel=0.05)
