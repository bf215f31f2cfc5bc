"""What is counted of steps that all replicas have taken."""

import math
from types import SimpleNamespace

from worker.executor.step_counter import StepCounter
from worker.policy.job_record import JobKey
from worker.replicas.packed_step import Stepped


def test_what_was_told_that_decides_ends_the_window() -> None:
    """A loss that is not finite, micro-batches that may be longer, or another choice of who takes part."""
    nobody = SimpleNamespace(record=lambda *told: None, trained=lambda seconds: None, asks_again=False)
    tasks = {"task": SimpleNamespace(trained=lambda steps: None)}
    counter, key = StepCounter(tasks, nobody, nobody), JobKey("task", 0)
    for stepped, decides in ((Stepped({key: 1.0}, 1.0), False), (Stepped({key: 1.0}, 1.0, grew=True), True)):
        counter.count([stepped])
        assert counter.decides is decides
    counter.begin()
    assert not counter.decides
    counter.count([Stepped({key: math.nan}, 1.0)])
    assert counter.decides
    counter.begin()
    nobody.asks_again = True
    assert counter.decides
