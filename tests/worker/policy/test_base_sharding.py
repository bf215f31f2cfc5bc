"""How much of a base is sharded: nothing where it fits, else as few layers as do not fit, then embedding and head."""

import pytest

from worker.policy.base_sharding import BaseSizes, ShardPlan, everything, plan_sharding, spread

GIB = 2**30
# 80 layers of 1.6 GiB, 2 GiB each of embedding and head: about Llama 3.1 70B in bf16
LARGE = BaseSizes((16 * GIB // 10,) * 80, (2 * GIB, 2 * GIB), GIB // 100)


def test_a_base_that_fits_beside_its_pass_is_not_sharded():
    whole = LARGE.whole
    assert plan_sharding(LARGE, 4, round(1.2 * whole), 10 * GIB) is None
    assert plan_sharding(LARGE, 4, round(1.2 * whole), 20 * GIB) is not None
    assert plan_sharding(LARGE, 1, 80 * GIB, 0) is None, "nobody to share it with"


@pytest.mark.parametrize("world", [2, 4, 8])
def test_only_as_many_layers_are_sharded_as_do_not_fit(world):
    room, before = 4 * GIB, 0
    for memory in (140, 120, 100, 90):
        plan = plan_sharding(LARGE, world, memory * GIB, room)
        assert plan is not None
        assert plan.bytes_per_rank(LARGE) <= 0.9 * memory * GIB - room
        fewer = ShardPlan(world, spread(len(plan.layers) - 1, 80))
        assert not fewer.layers or fewer.bytes_per_rank(LARGE) > 0.9 * memory * GIB - room
        assert len(plan.layers) > before, "less memory, more layers"
        assert not plan.ends
        before = len(plan.layers)


def test_a_base_that_is_sharded_anyway_makes_room_for_all_that_is_wanted():
    least, wanted = 4 * GIB, 20 * GIB
    fits = round((LARGE.whole + least) / 0.9) + 1
    assert plan_sharding(LARGE, 4, fits, least, wanted) is None, "a copy leaves the least"
    few, more = (plan_sharding(LARGE, 4, fits - GIB, least, some) for some in (0, wanted))
    assert few is not None
    assert more is not None
    assert few.bytes_per_rank(LARGE) > 0.9 * (fits - GIB) - least - wanted >= more.bytes_per_rank(LARGE)
    assert plan_sharding(LARGE, 4, fits - GIB, least, 500 * GIB) == everything(LARGE, 4)


def test_embedding_and_head_are_sharded_last():
    plan = plan_sharding(LARGE, 8, 26 * GIB, GIB)
    assert plan == everything(LARGE, 8)
    assert plan.ends
    assert "(80 of its 80 layers, embedding and head)" in plan.sentence(LARGE)
    tied = BaseSizes(LARGE.layers, (), 2 * GIB)
    assert not everything(tied, 8).ends


def test_a_base_that_no_sharding_fits_is_sharded_all_the_same():
    """Admission then says of each job what it lacks."""
    assert plan_sharding(LARGE, 4, GIB, 0) == everything(LARGE, 4)


def test_sharded_layers_lie_evenly_among_the_others():
    assert spread(2, 8) == (3, 7)
    assert spread(8, 8) == tuple(range(8))
    for some in range(33):
        assert len(spread(some, 32)) == some
    gaps = [later - earlier for earlier, later in zip(spread(10, 32), spread(10, 32)[1:], strict=False)]
    assert set(gaps) <= {3, 4}
