"""Which replica gets which job: nobody waits who could train, all have about as much left, and no job moves for little."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from worker.policy.adapter_memory_model import Capacity, MemoryModel
from worker.policy.admission import Demand, admission_refusal, peak
from worker.policy.replica_assignment import Load, Move, assign, next_move

MIB = 2**20


def capacity(memory_mib: int = 1000, piece_tokens: int = 4000) -> Capacity:
    return Capacity(MemoryModel(100 * MIB, 0.1 * MIB, 2 * MIB), memory_mib * MIB, piece_tokens)


def demand(key, left=40_000.0, tokens=400, batch_size=4, rows=16, placement="a") -> Demand:
    return Demand(key, placement, batch_size, tokens, 200, rows, left=left)


DEMANDS = st.lists(
    st.builds(
        demand,
        key=st.integers(),
        left=st.floats(0, 1e6),
        tokens=st.integers(10, 3000),
        batch_size=st.sampled_from([1, 4, 16]),
        rows=st.sampled_from([8, 64, 256]),
        placement=st.sampled_from("ab"),
    ),
    max_size=25,
    unique_by=lambda d: d.key,
)
CAPACITIES = st.lists(st.builds(capacity, st.integers(300, 3000), st.integers(500, 8000)), min_size=1, max_size=4)


def keys(dealt) -> list[list[object]]:
    return [[d.key for d in own] for own in dealt]


def test_equal_jobs_are_dealt_evenly():
    empty = [Load((), capacity()), Load((), capacity())]
    assert keys(assign(empty, [demand(n) for n in range(5)])) == [[0, 2, 4], [1, 3]]


def test_who_has_less_left_gets_the_next():
    busy = [Load((demand("long", left=100_000),), capacity()), Load((demand("short", left=10_000),), capacity())]
    assert keys(assign(busy, [demand(n, left=30_000) for n in range(4)])) == [[3], [0, 1, 2]]


def test_what_does_not_fit_on_one_goes_to_another():
    full = Load((demand("runs", left=1, rows=256, tokens=3900),), capacity())
    assert keys(assign([full, Load((demand("long", left=1e9),), capacity())], [demand("new")])) == [[], ["new"]]


@given(DEMANDS, CAPACITIES)
def test_no_job_is_dealt_twice_none_beyond_memory_and_none_waits_beside_an_empty_replica(waiting, capacities):
    loads = [Load((), has) for has in capacities]
    dealt = assign(loads, waiting)
    started = [d.key for own in dealt for d in own]
    assert len(started) == len(set(started))
    for own, has in zip(dealt, capacities, strict=True):
        beyond = len(started) == 1 and all(admission_refusal(d, other) for d in waiting for other in capacities)
        assert not own or beyond or peak(own, has) <= has.usable_bytes
        if not own:
            assert all(d.key in started or admission_refusal(d, has) for d in waiting)
    assert dealt == assign(loads, waiting), "the same again"


def test_an_idle_replica_takes_half_over():
    jobs = tuple(demand(n) for n in range(4))
    loads = [Load(jobs, capacity()), Load((), capacity())]
    first = next_move(loads)
    assert first == Move(jobs[0], 0, 1)
    assert next_move([Load(jobs[1:], capacity()), Load(jobs[:1], capacity())]) == Move(jobs[1], 0, 1)
    assert next_move([Load(jobs[2:], capacity()), Load(jobs[:2], capacity())]) is None


def test_no_job_moves_for_little():
    assert next_move([Load((demand(0),), capacity()), Load((), capacity())]) is None, "it would only be elsewhere"
    nearly_done = tuple(demand(n, left=3_000) for n in range(2))
    assert next_move([Load(nearly_done, capacity()), Load((), capacity())]) is None
    full = capacity(memory_mib=120)
    assert next_move([Load((demand(0), demand(1)), capacity()), Load((), full)]) is None


@given(DEMANDS, CAPACITIES)
def test_takeovers_end_and_leave_no_replica_much_behind(jobs, capacities):
    loads = [Load(tuple(jobs) if at == 0 else (), has) for at, has in enumerate(capacities)]
    for _ in range(len(jobs) * len(loads) + 1):
        move = next_move(loads)
        if move is None:
            break
        before = max(load.left for load in loads)
        for at, add in ((move.giver, ()), (move.taker, (move.demand,))):
            kept = tuple(d for d in loads[at].running if d != move.demand)
            loads[at] = Load((*kept, *add), loads[at].capacity)
        assert max(load.left for load in loads) <= before
    assert move is None


def test_where_nothing_runs_the_job_that_lacks_least_tries_though_none_fits():
    small, large = capacity(memory_mib=130), capacity(memory_mib=140)
    waiting = [demand(0, rows=64), demand(1, rows=32)]
    assert keys(assign([Load((), small), Load((), large)], waiting)) == [[], [1]]
    assert keys(assign([Load((demand(2),), small), Load((), large)], waiting)) == [[], []], "its end may give them room"
    full = replace(large, most_rows=0)
    assert keys(assign([Load((), full)], waiting)) == [[]], "nobody has rows for them: they wait for those that others have"
