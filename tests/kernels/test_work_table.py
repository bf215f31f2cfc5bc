"""The work table's rank classes: every token in exactly one block, spans found by attention, no launch for nobody."""

import math
import random
from collections import Counter

import pytest
from grouped_lora.adapter_spans import Span
from grouped_lora.block.sequence_table import sequence_blocks
from grouped_lora.work_table import BLOCK_T, UNADAPTED_SPAN, ClassSize, HostTable, holds, host_table


def spans(*parts: tuple[int, int]) -> list[Span]:
    """Adapters (tokens, rank) one after another."""
    found, at, row = [], 0, 0
    for tokens, rank in parts:
        found.append(Span(at, at + tokens, row, rank, 1.0))
        at, row = at + tokens, row + rank
    return found


def walked(table: HostTable) -> list[tuple[int, int, int, int]]:
    """(token, end, rank, class's width) of each block in use, found as a launch finds them."""
    found = []
    for part in table.on("cpu").classes:
        for span, start, stop in part.blocks.tolist():
            if stop > start:
                assert part.spans[span, 0] <= start
                assert stop <= part.spans[span, 1]
                found.append((start, stop, int(part.spans[span, 3]), part.rank_class))
    return sorted(found)


@pytest.mark.parametrize(
    ("parts", "widths"),
    [
        (((70, 16), (5, 256), (130, 64), (1, 4), (64, 100)), [64, 128, 256]),
        (((70, 16), (5, 200)), [16, 256]),
        (((70, 130), (5, 65)), [128, 256]),
        (((3, 8), (5, 32)), [32]),
        ((), [0]),
    ],
)
def test_every_token_lies_in_one_block_of_its_adapters_class(parts: tuple[tuple[int, int], ...], widths: list[int]) -> None:
    adapters = spans(*parts)
    tokens = sum(size for size, _ in parts) + UNADAPTED_SPAN + 7
    table = host_table(adapters, tokens, span_step=4, block_step=16)
    assert [size.rank_class for size in table.sizes] == widths
    assert all(size.spans % 4 == 0 and size.blocks % 16 == 0 for size in table.sizes)
    blocks = walked(table)
    assert [at for start, stop, _, _ in blocks for at in range(start, stop)] == list(range(tokens))
    assert max(stop - start for start, stop, _, _ in blocks) <= BLOCK_T
    for start, _, rank, width in blocks:
        own = next((span.rank for span in adapters if span.start <= start < span.stop), 0)
        assert rank == own
        assert width == next(w for w in widths if w >= own)


def test_attention_finds_each_sequences_span_in_the_sorted_table() -> None:
    adapters = spans((70, 256), (5, 16), (130, 100), (9, 4))
    table = host_table(adapters, 250, span_step=4, block_step=16)
    found = sequence_blocks([0, 60, 70, 75, 205, 214, 250], 20, table.spans)
    for start, first, stop, span in found[found[:, 2] > 0]:
        assert first <= start < stop
        assert table.spans[span, 0] <= first
        assert stop <= table.spans[span, 1]


def test_narrow_adapters_have_the_table_that_they_have_without_a_wide_neighbour() -> None:
    alone = host_table(spans((70, 16), (5, 64)), 75)
    beside = host_table(spans((70, 16), (5, 64), (33, 256)), 108)
    narrow, wide = beside.on("cpu").classes
    assert beside.sizes[0] == alone.sizes[0]
    assert narrow.spans.equal(alone.on("cpu").spans)
    assert narrow.blocks.equal(alone.on("cpu").blocks)
    assert beside.sizes[1] == ClassSize(256, 1, 1)
    assert wide.blocks.tolist() == [[0, 75, 108]]


@pytest.mark.parametrize("count", [1, 3, 8, 16, 40])
def test_a_table_of_one_class_is_sized_by_its_tokens_and_spans(count: int) -> None:
    draw, tokens, sizes = random.Random(count), 64 * count + 2048, Counter[ClassSize]()
    for _ in range(200):
        cuts = sorted(draw.sample(range(1, tokens), count - 1))
        adapters = spans(*((b - a, 16) for a, b in zip([0, *cuts], [*cuts, tokens], strict=True)))
        table = host_table(adapters, tokens, span_step=4, block_step=None)
        assert [at for start, stop, _, _ in walked(table) for at in range(start, stop)] == list(range(tokens))
        sizes.update(table.sizes)
    (usual, times), *others = sizes.most_common()
    assert times >= 190
    assert len(others) <= 1, "where there are more blocks than usual"
    assert tokens / BLOCK_T + count / 2 < usual.blocks < tokens / BLOCK_T + count / 2 + 3 * math.sqrt(usual.spans / 12) + 3
    assert all(other.blocks > usual.blocks for other in sizes if other != usual)


def test_a_table_with_more_blocks_than_usual_has_room_for_any() -> None:
    adapters = spans(*[(BLOCK_T + 1, 16)] * 23, (BLOCK_T, 16))  # 47 blocks
    (size,) = host_table(adapters, 24 * (BLOCK_T + 1) - 1, block_step=None).sizes
    assert size == ClassSize(16, 24, 48)


@pytest.mark.parametrize(("first", "second"), [((0, 10), (9, 20)), ((0, 10), (10, 31))])
def test_spans_that_overlap_or_leave_the_step_are_refused(first: tuple[int, int], second: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="overlaps its neighbour or leaves the step's 30 tokens"):
        host_table([Span(*first, 0, 8, 1.0), Span(*second, 8, 8, 1.0)], 30)


def test_blocks_of_several_classes_are_multiples_of_about_half_a_pass() -> None:
    (narrow, wide) = host_table(spans((3000, 16), (3100, 200)), 6100, block_step=None).sizes
    assert (narrow.blocks, wide.blocks) == (64, 64)
    assert [size.blocks for size in host_table(spans((700, 16), (300, 200)), 1000, block_step=None).sizes] == [16, 16]


def test_a_table_in_a_larger_ones_capacity_gives_the_same_work() -> None:
    adapters = spans((70, 16), (5, 256), (130, 64), (64, 100))
    own = host_table(adapters, 300)
    larger = host_table(spans((200, 32), (90, 40), (10, 16), (33, 200), (70, 128)), 450, span_step=4, block_step=16).sizes
    assert holds(larger, own.sizes)
    padded = own.padded(larger)
    assert padded.sizes == larger
    assert [block[:3] for block in walked(padded)] == [block[:3] for block in walked(own)]
    assert sequence_blocks([0, 70, 75, 205, 269, 300], 20, padded.spans)[:, :3].tolist() == (
        sequence_blocks([0, 70, 75, 205, 269, 300], 20, own.spans)[:, :3].tolist()
    )


@pytest.mark.parametrize(
    "larger",
    [
        (ClassSize(64, 2, 8),),  # no launch for 256
        (ClassSize(16, 8, 80), ClassSize(256, 8, 80)),  # narrower tiles
        (ClassSize(64, 8, 80), ClassSize(128, 8, 80)),
        (ClassSize(64, 1, 80), ClassSize(256, 8, 80)),  # fewer spans
        (ClassSize(64, 8, 2), ClassSize(256, 8, 80)),  # fewer blocks
        (ClassSize(64, 8, 80), ClassSize(256, 8, 80), ClassSize(256, 8, 80)),
    ],
)
def test_a_table_that_lacks_room_or_a_launch_is_refused(larger: tuple[ClassSize, ...]) -> None:
    own = host_table(spans((70, 16), (130, 64), (64, 200)), 264)
    assert not holds(larger, own.sizes)
    with pytest.raises(ValueError, match="does not fit"):
        own.padded(larger)
