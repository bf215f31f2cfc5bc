"""Pages and continuous batching: who joins, who waits, and that every page comes back. No tensors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.generate.batch_scheduler import BatchScheduler, GenerationLimits, SequenceTooLongError
from worker.generate.page_allocator import CacheFullError, PageAllocator
from worker.generate.sequence import Sampling, Sequence


def sequence(prompt: int, new: int = 4) -> Sequence:
    return Sequence(tuple(range(prompt)), Sampling(new))


def decode(tokens: object) -> str:
    return ""


def test_pages_are_each_somebodys_and_come_back_once() -> None:
    pages = PageAllocator(6, 16)
    assert (pages.free, pages.total, [pages.pages_for(n) for n in (1, 16, 17)]) == (5, 5, [1, 1, 2])
    first, second = pages.take(2), pages.take(3)
    assert 0 not in first + second
    assert len({*first, *second}) == 5
    with pytest.raises(CacheFullError, match="1 pages were asked for, 0 of 5 are free"):
        pages.take(1)
    pages.give_back(first)
    with pytest.raises(ValueError, match="was not taken"):
        pages.give_back(first[:1])
    assert (pages.free, pages.total) == (2, 5)


def test_sequences_join_in_order_within_the_limits_and_before_the_next_decode() -> None:
    scheduler = BatchScheduler(GenerationLimits(3, 10, 64), PageAllocator(100, 4))
    added = [sequence(n) for n in (6, 4, 3, 2)]
    for one in added:
        scheduler.add(one)
    first = scheduler.next()
    assert first is not None
    assert (first.prefill, first.sequences) == (True, tuple(added[:2]))  # the third would be 13 tokens
    second = scheduler.next()
    assert second is not None
    assert (second.prefill, second.sequences) == (True, (added[2],))
    third = scheduler.next()
    assert third is not None
    assert (third.prefill, third.sequences) == (False, tuple(added[:3]))  # the fourth has no seat
    scheduler.leave(added[1])
    fourth = scheduler.next()
    assert fourth is not None
    assert fourth.sequences == (added[3],)


def test_a_long_prompt_goes_alone_and_who_fits_nowhere_is_refused() -> None:
    scheduler = BatchScheduler(GenerationLimits(8, 10, 64), PageAllocator(8, 8))
    with pytest.raises(SequenceTooLongError, match=r"60 tokens and max_new_tokens 5 are 65 positions; the base has 64"):
        scheduler.add(sequence(60, 5))
    with pytest.raises(SequenceTooLongError, match=r"59 positions do not fit in the key-value cache of 56 tokens"):
        scheduler.add(sequence(55, 4))
    long, short = sequence(30), sequence(2)
    scheduler.add(long)
    scheduler.add(short)
    step = scheduler.next()
    assert step is not None
    assert step.sequences == (long,)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 9)), max_size=25), st.integers(1, 5), st.integers(8, 20))
def test_every_sequence_ends_and_every_page_comes_back(sizes: list[tuple[int, int]], seats: int, pages: int) -> None:
    allocator = PageAllocator(pages, 4)
    scheduler = BatchScheduler(GenerationLimits(seats, 16, 64), allocator)
    added = [sequence(*size) for size in sizes]
    for one in added:
        scheduler.add(one)
    while (step := scheduler.next()) is not None:
        assert 0 < len(step.sequences) <= seats
        held = [page for one in scheduler.running for page in one.pages]
        assert len(held) == len(set(held)) == allocator.total - allocator.free
        for one in step.sequences:
            assert len(one.pages) * 4 >= len(one.prompt) + len(one.generated)
            one.append(1, None, frozenset(), decode)
            if one.completion is not None:
                scheduler.leave(one)
    assert [len(one.generated) for one in added] == [new for _, new in sizes]
    assert allocator.free == allocator.total
    assert not scheduler.busy
