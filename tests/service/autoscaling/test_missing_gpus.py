"""Waiting tasks against free GPUs: widest first, each on one node, as full as it gets."""

import pytest

from service.autoscaling.missing_gpus import tasks_beyond


@pytest.mark.parametrize(
    ("waiting", "free", "beyond"),
    [
        ({}, [8], {}),
        ({1: 3}, [], {1: 3}),
        ({1: 3}, [2], {1: 1}),
        ({2: 1}, [1, 1], {2: 1}),  # a task lies on one node
        ({4: 1, 2: 2}, [4, 4], {4: 0, 2: 0}),
        ({4: 1, 2: 2}, [6, 2], {4: 0, 2: 0}),
        ({4: 1, 2: 1, 1: 1}, [4], {4: 0, 2: 1, 1: 1}),
        ({2: 1, 4: 1}, [2, 4], {4: 0, 2: 0}),  # the fullest room that is enough, or the wide one would find none
        ({1: 100_000}, [8] * 1000, {1: 92_000}),
        ({1: 1}, [0, -1], {1: 1}),
    ],
)
def test_what_finds_no_room(waiting, free, beyond):
    assert tasks_beyond(waiting, free) == beyond
