"""The axis of the tokens that labels are predicted from: whose work is where on it, and the way there and back."""

import random

import numpy as np
import pytest
import torch
from grouped_lora import Span

from worker.model.cuda.batches.device_batch import BatchShape, tables
from worker.model.cuda.batches.label_batch import LABEL_STEP, LabelBatch, upload_labels
from worker.model.example import Example
from worker.model.flat_batch import Dropout, FlatBatch, Segment

CPU = torch.device("cpu")


def example(draw: random.Random) -> Example:
    """A row whose labels are some of its tokens; of one in six there are none."""
    tokens = draw.randint(2, 40)
    share = draw.choice([0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
    mask = np.array([place > 0 and draw.random() < share for place in range(tokens)])
    return Example(np.array([draw.randrange(500) for _ in range(tokens)], np.int32), mask)


def made(seed: int, ranks: list[int], dropout: bool = False) -> tuple[FlatBatch, list[Span], LabelBatch, BatchShape]:
    """Segments of adapters of these ranks; of rank 0 is the base alone."""
    draw = random.Random(seed)
    drops = Dropout(0.3, seed, 2) if dropout else None
    segments = [Segment(None, [example(draw) for _ in range(draw.randint(1, 4))], 0.5 + at, None) for at in range(len(ranks))]
    batch = FlatBatch.of(segments)
    if drops is not None:
        keys = np.concatenate([drops.keys(segment.examples) for segment in segments])
        batch = FlatBatch(**vars(batch) | {"keys": np.resize(keys, batch.tokens.shape[0])})
    spans = [
        Span(*place, 300 * at, rank, 2.0, 0.0)
        for at, (place, rank) in enumerate(zip(batch.ranges, ranks, strict=True))
        if rank and place[1] > place[0]
    ]
    flags = [at % 2 == 1 for at in range(len(spans))]
    table = tables(batch, tuple(spans), tuple(flags))
    shape = BatchShape.of(batch, table)
    return batch, spans, upload_labels(batch, spans, flags, shape, CPU), shape


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ranks", [[16], [0, 8, 64], [4, 256, 0, 100, 16], [128, 128], [0, 0]])
def test_every_adapter_has_the_tokens_that_its_own_labels_are_predicted_from(seed: int, ranks: list[int]) -> None:
    batch, spans, found, shape = made(seed, ranks)
    places = batch.label_indices.numpy()
    assert found.indices.shape[0] % LABEL_STEP == 0
    assert found.indices[: len(places)].tolist() == places.tolist()
    assert set(found.indices[len(places) :].tolist()) <= {shape.tokens}
    assert [size.rank_class for size in found.table.sizes] == [size.rank_class for size in shape.classes]
    entries = {tuple(row[2:5]): row[:2] for row in found.table.spans.tolist() if row[3]}
    assert len(entries) == len(spans)
    for at, span in enumerate(spans):
        start, stop = entries[span.row, span.rank, at % 2]
        own = [place for place in places if span.start <= place < span.stop]
        assert places[start:stop].tolist() == own
    covered = sorted(tuple(row[:2]) for row in found.table.spans.tolist() if row[1] > row[0])
    assert [start for start, _ in covered] == [0, *(stop for _, stop in covered[:-1])], "each token is in one span"
    assert covered[-1][1] == found.indices.shape[0]


def test_dropout_draws_at_a_label_what_it_draws_at_its_token() -> None:
    batch, _, found, _ = made(3, [8, 16], dropout=True)
    places = batch.label_indices.numpy()
    assert batch.keys is not None
    assert found.table.keys is not None
    keys = found.table.keys.numpy().view(np.uint32)
    assert keys[: len(places)].tolist() == batch.keys[places].tolist()
    assert not keys[len(places) :].any()


def test_what_is_spread_lies_at_its_tokens_and_nothing_elsewhere_whatever_was_there() -> None:
    batch, _, found, shape = made(5, [8, 16, 0])
    values = torch.randn(found.indices.shape[0], 3)
    room = torch.full((shape.tokens + 1, 3), float("nan"))
    spread = found.spread(values, shape.tokens, room)
    assert spread.data_ptr() == room.data_ptr()
    assert torch.equal(found.spread(values, shape.tokens, None), spread)
    count = len(batch.label_indices)
    assert torch.equal(found.of(spread)[:count], values[:count])
    rest = torch.ones(shape.tokens, dtype=torch.bool)
    rest[batch.label_indices] = False
    assert not spread[rest].any()
