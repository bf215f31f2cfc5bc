"""Admission: never over the memory model, never starving, batch sizes kept together."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from worker.policy.adapter_memory_model import Capacity, MemoryModel, capacity_after_oom, grown_capacity, max_arena_rows
from worker.policy.admission import Demand, admission_refusal, peak
from worker.policy.replica_assignment import Load, assign

MIB = 2**20


def capacity(memory_mib: int = 1000, piece_tokens: int = 4000) -> Capacity:
    return Capacity(MemoryModel(100 * MIB, 0.1 * MIB, 2 * MIB), memory_mib * MIB, piece_tokens)


def demand(key, batch_size=4, tokens=400, longest=200, rows=16, placement="a", turn=0) -> Demand:
    return Demand(key, placement, batch_size, tokens, longest, rows, turn)


def admit(active: list[Demand], waiting: list[Demand], has: Capacity) -> list[Demand]:
    """What starts on a single replica."""
    return assign([Load(tuple(active), has)], waiting)[0]


DEMANDS = st.lists(
    st.builds(
        demand,
        key=st.integers(),
        batch_size=st.sampled_from([1, 2, 4, 8, 16]),
        tokens=st.integers(10, 5000),
        longest=st.integers(10, 9000),
        rows=st.sampled_from([8, 16, 64, 256]),
        placement=st.sampled_from("abc"),
        turn=st.integers(0, 2),
    ),
    max_size=25,
    unique_by=lambda d: d.key,
)


@given(DEMANDS, st.integers(150, 3000), st.integers(100, 8000))
def test_all_that_can_run_here_runs_and_memory_is_never_exceeded(demands, memory_mib, piece_tokens):
    has = capacity(memory_mib, piece_tokens)
    waiting = [d for d in demands if admission_refusal(d, has) is None]
    active, done = deque[Demand](), []
    while waiting or active:
        started = admit(list(active), waiting, has)
        active.extend(started)
        waiting = [d for d in waiting if d not in started]
        assert active, "something that fits alone always starts in an empty executor"
        assert peak(list(active), has) <= has.usable_bytes
        done.append(active.popleft())
    assert sorted(d.key for d in done) == sorted(d.key for d in demands if admission_refusal(d, has) is None)


@given(DEMANDS, DEMANDS, st.integers(150, 3000))
def test_a_step_stays_within_one_micro_batch_but_for_each_groups_first(active, waiting, memory_mib):
    has = capacity(memory_mib)
    running = list(active)
    for started in admit(active, waiting, has):
        alone = all(d.placement != started.placement for d in running)
        running.append(started)
        assert alone or sum(d.tokens for d in running) <= has.piece_tokens


def test_decreasing_batch_size_then_the_same_size_then_mixed():
    has = capacity(piece_tokens=2000)
    jobs = [demand("small", 2), demand("big", 8), demand("mid", 4), demand("big too", 8), demand("mid too", 4)]
    assert [d.key for d in admit([], jobs, has)] == ["big", "big too", "mid", "mid too", "small"]
    assert [d.key for d in admit([demand("runs", 4)], jobs, has)] == ["mid", "mid too", "big", "big too"]


def test_a_lower_turn_goes_first_whatever_its_batch_size():
    has = capacity(piece_tokens=400)
    assert [d.key for d in admit([], [demand("later", 8, turn=1), demand("now", 1)], has)] == ["now"]


def test_a_group_that_waits_for_memory_is_not_overtaken():
    has = capacity(memory_mib=1000)
    active = [demand("a1", rows=256)]  # 100 + 80 + 512 MiB of 900
    large = demand("b1", rows=256, placement="b")
    small = demand("a2", rows=8)
    assert admit(active, [small, large], has) == []
    assert admit([], [small, large], has)[0] in (small, large)
    assert [d.key for d in admit(active, [small, demand("b2", rows=8, placement="b")], has)] == ["b2", "a2"]


def test_the_group_with_less_on_the_axis_chooses_first():
    active = [demand("a1", tokens=1000), demand("b1", tokens=100, placement="b")]
    waiting = [demand("a2"), demand("b2", placement="b"), demand("b3", placement="b")]
    assert [d.key for d in admit(active, waiting, capacity())] == ["b2", "b3", "a2"]


def test_a_job_that_never_fits_says_so_with_numbers():
    has = capacity(memory_mib=500)
    assert admission_refusal(demand("fits"), has) is None
    why = admission_refusal(demand("huge", rows=256, longest=1000), has)
    assert "256 adapter rows" in why
    assert "needs 1012 MiB" in why
    assert "may use 450 MiB" in why


def test_a_thousand_jobs_are_judged_quickly():
    jobs = [demand(n, batch_size=1 + n % 5) for n in range(1024)]
    assert len(admit([], jobs, capacity(memory_mib=100_000, piece_tokens=400 * 64))) == 64


def test_what_found_no_memory_is_not_expected_to_fit_again():
    has = capacity(memory_mib=1000, piece_tokens=4000)
    tried = [demand(key, batch_size=8, longest=500) for key in range(2)]
    assert peak(tried, has) < has.usable_bytes
    less = capacity_after_oom(has, tokens=4000, rows=32)
    assert less.piece_tokens == 2000
    assert less.model.predict(4000, 32) == has.memory_bytes
    assert capacity_after_oom(less, tokens=10, rows=0).piece_tokens == 5
    assert capacity_after_oom(less, tokens=1, rows=0).piece_tokens == 1


@given(st.integers(150, 3000), st.integers(1, 20_000))
def test_the_arenas_cap_is_the_last_row_that_fits(memory_mib, tokens):
    has = capacity(memory_mib)
    cap = max_arena_rows(has, tokens)
    assert cap == 0 or has.model.predict(tokens, cap) <= has.usable_bytes
    assert has.model.predict(tokens, cap + 1) > has.usable_bytes


@given(st.integers(600, 3000), st.integers(100, 8000), st.integers(8, 128), st.integers(2, 20_000))
def test_what_was_made_smaller_grows_again_and_stays_within_memory(memory_mib, most, rows, failed):
    has = capacity(memory_mib, most)
    now = capacity_after_oom(has, tokens=failed, rows=rows)
    for _ in range(40):
        before, now = now, grown_capacity(now, most, rows)
        assert before.piece_tokens <= now.piece_tokens <= most
        if now.piece_tokens > before.piece_tokens:
            assert now.model.predict(now.piece_tokens, rows) <= now.usable_bytes, "that pass is expected to fit"
            assert now.piece_tokens < failed or now.model == has.model, "what failed is not tried again"
    room = (now.usable_bytes - now.model.predict(0, rows)) / now.model.per_token
    assert now.piece_tokens >= min(most, int(room)), "it ends at all that the model allows"
    assert grown_capacity(now, most, 0).piece_tokens >= now.piece_tokens, "fewer rows leave more"
