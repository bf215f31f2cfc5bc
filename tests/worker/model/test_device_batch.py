"""The buckets of passes that are captured: few enough to repeat, whoever shares a pass."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from grouped_lora import Span
from grouped_lora.work_table import ClassSize

from worker.model.cuda.batches.device_batch import REPEATED, BatchShape, Grain, tables
from worker.model.cuda.pass_graphs import CAPTURE_AFTER
from worker.model.example import Example
from worker.model.flat_batch import FlatBatch, Segment

PASSES = 250


def example(tokens: int) -> Example:
    return Example(np.ones(tokens, np.int32), np.arange(tokens) >= tokens // 3)


def shapes(batch_sizes: list[int], grain: Grain, seed: int) -> list[tuple[BatchShape, int]]:
    """(bucket, tokens) of passes in which each task has a batch of rows of its own, of 40 to 280 tokens."""
    draw, found = random.Random(seed), []
    for _ in range(PASSES):
        batch = FlatBatch.of(
            [Segment(None, [example(draw.randint(40, 280)) for _ in range(size)], 1.0) for size in batch_sizes]
        )
        spans = tuple(Span(*place, 16 * number, 16, 2.0, 0.0) for number, place in enumerate(batch.ranges))
        found.append((BatchShape.of(batch, tables(batch, spans, (False,) * len(spans), grain), grain), batch.size))
    return found


def replayed(found: list[tuple[BatchShape, int]]) -> float:
    """The fraction of passes whose bucket was captured before."""
    seen, hits = Counter[BatchShape](), 0
    for shape, _ in found:
        seen[shape] += 1
        hits += seen[shape] > CAPTURE_AFTER
    return hits / len(found)


@pytest.mark.parametrize("batch_sizes", [[4], [1, 2, 4], [2, 2, 2, 4], [2] * 9])
def test_passes_of_tasks_that_share_meet_buckets_again(batch_sizes: list[int]) -> None:
    found = shapes(batch_sizes, REPEATED, seed=len(batch_sizes))
    assert replayed(found) > 0.75
    finer = replace(REPEATED, steps=32)
    assert replayed(found) > replayed(shapes(batch_sizes, finer, seed=len(batch_sizes))) + 0.05
    for shape, tokens in found:
        assert tokens <= shape.tokens < tokens + max(32, tokens / 8)


@pytest.mark.parametrize(
    ("change", "enough"),
    [
        ({}, True),
        ({"tokens": 512, "sequences": 64}, True),
        ({"tokens": 1056}, False),
        ({"classes": (ClassSize(64, 8, 32),)}, False),
        ({"classes": (ClassSize(16, 400, 800),)}, True),
        ({"classes": (ClassSize(16, 4, 16), ClassSize(256, 4, 16))}, False),
        ({"has_dropout": True}, False),
    ],
)
def test_a_pass_finds_its_memory_in_that_of_one_that_is_smaller_in_nothing(change: dict[str, Any], enough: bool) -> None:
    known = BatchShape(1024, 8, (ClassSize(32, 4, 16),))
    assert known.takes_as_much_as(replace(known, **change)) is enough
    if enough:
        assert replace(known, has_dropout=True).takes_as_much_as(replace(known, **change))
