"""Weights at the lowest losses are read back by another thread than the one that trains."""

import threading

import pytest
import torch

from worker.adapters.job_checkpoint import UnreadableWeights
from worker.adapters.lowest_reading import LowestReading
from worker.adapters.weights_copies import WeightsCopy

PATIENCE = 60.0


def test_the_mean_of_all_and_the_first_are_read_beside_whoever_asks():
    go_on, readers = threading.Event(), list[threading.Thread]()
    weights = [torch.randn(4, 100_000) for _ in range(3)]

    def read(number: int) -> torch.Tensor:
        assert go_on.wait(PATIENCE)
        readers.append(threading.current_thread())
        return weights[number]

    reading = LowestReading([WeightsCopy(lambda number=number: read(number), lambda: None) for number in range(3)])
    assert not reading.over
    go_on.set()
    assert torch.equal(reading.mean(3), (weights[0] + weights[1] + weights[2]) / 3), "to the bit"
    assert reading.over
    assert reading.mean(1) is weights[0]
    assert reading.mean(2) is None
    assert len(readers) == 3
    assert threading.current_thread() not in readers


def unreadable() -> torch.Tensor:
    raise UnreadableWeights("the disk is gone")


def test_an_error_of_the_disk_is_raised_where_the_weights_are_wanted():
    reading = LowestReading([WeightsCopy(unreadable, lambda: None)])
    for _ in range(2):
        with pytest.raises(UnreadableWeights, match="the disk is gone"):
            reading.mean(1)
    assert reading.over


def test_where_the_system_starts_no_thread_the_caller_reads(lacking, caplog):
    lacking.add("weights read back")
    weights = torch.randn(4, 10)
    reading = LowestReading([WeightsCopy(lambda: weights, lambda: None)])
    assert reading.over
    assert reading.mean(1) is weights
    assert "all tasks wait while weights at the lowest losses are read back" in caplog.text
