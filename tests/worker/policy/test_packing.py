"""Packing: every sequence once, within the budget, a job's pieces in order and cut without regard to its neighbours."""

from hypothesis import given
from hypothesis import strategies as st

from worker.policy.packing import batch_ranges, pack, pack_pieces, split_batch

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=12)
BATCHES = st.dictionaries(st.integers(0, 99), LENGTHS, max_size=8)
BUDGET = st.integers(20, 150)


@given(BATCHES, BUDGET)
def test_every_sequence_lies_once_within_the_budget(batches, budget):
    bins = pack(batches, budget)
    seen = {job: [] for job in batches}
    for held in bins:
        tokens = sum(chunk.tokens for chunk in held)
        assert tokens <= budget or (len(held) == 1 and held[0].last - held[0].first == 1)
        assert len({chunk.job for chunk in held}) == len(held)  # one segment of a job in a micro-batch
        for chunk in held:
            assert chunk.tokens == sum(batches[chunk.job][chunk.first : chunk.last])
            seen[chunk.job].extend(range(chunk.first, chunk.last))
    assert seen == {job: list(range(len(lengths))) for job, lengths in batches.items()}  # in order, none twice


@given(BATCHES, LENGTHS, BUDGET)
def test_a_job_is_cut_the_same_alone_and_among_neighbours(neighbours, lengths, budget):
    beside = pack({**neighbours, "job": lengths}, budget)
    alone = pack({"job": lengths}, budget)
    own = [(c.first, c.last) for held in beside for c in held if c.job == "job"]
    assert own == [(c.first, c.last) for held in alone for c in held] == batch_ranges(lengths, budget)


@given(BATCHES, BUDGET)
def test_a_job_within_the_budget_is_whole_and_the_axis_keeps_the_jobs_order(batches, budget):
    place = {job: number for number, job in enumerate(batches)}
    bins = pack(batches, budget)
    for held in bins:
        assert [place[c.job] for c in held] == sorted(place[c.job] for c in held)
    for job, lengths in batches.items():
        if sum(lengths) <= budget:
            assert sum(c.job == job for held in bins for c in held) == 1


@given(BATCHES, BUDGET)
def test_no_two_micro_batches_of_whole_jobs_could_be_one(batches, budget):
    whole = {job: lengths for job, lengths in batches.items() if sum(lengths) <= budget}
    loads = [sum(c.tokens for c in held) for held in pack(whole, budget)]
    assert all(a + b > budget for n, a in enumerate(loads) for b in loads[n + 1 :])


def test_pieces_of_one_job_lie_in_ascending_micro_batches_with_room_for_several():
    """Passes may be longer than pieces, as where tasks of other budgets share them."""
    pieces = [split_batch("job", [10] * 6, 20), split_batch("other", [10] * 4, 30)]
    bins = pack_pieces(pieces, 100)
    assert [[(c.job, c.first) for c in held] for held in bins] == [
        [("job", 0), ("other", 0)],
        [("job", 2), ("other", 3)],
        [("job", 4)],
    ]


def test_the_longest_come_first_and_a_pass_may_be_full():
    bins = pack({"a": [3], "b": [7], "c": [8], "d": [2]}, 10)
    assert [[c.job for c in held] for held in bins] == [["c", "d"], ["a", "b"]]
    assert batch_ranges([10, 10, 1], 20) == [(0, 2), (2, 3)]


def test_nothing_to_pack():
    assert pack({}, 100) == []
    assert batch_ranges([], 100) == []
