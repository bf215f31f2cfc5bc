"""Shares, and who gives back: plain values in, plain values out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.scheduler.fair_share import Share, decayed, entered, jain, owed, standing, weight
from service.scheduler.preempt import Claim, Held, preemption
from service.scheduler.problem import Node


def test_use_forgets_by_halves_and_settles_at_what_is_held() -> None:
    assert decayed(8, 0, seconds=100, half_life=100) == 4
    assert decayed(0, 8, seconds=100, half_life=100) == 4
    assert decayed(8, 8, seconds=1e9, half_life=100) == pytest.approx(8)


def test_a_start_counts_at_once_as_much_as_holding_will() -> None:
    assert entered(2, 4, seconds=300, half_life=300) == 2 + 4 / 2


def test_the_dominant_type_and_the_weight_decide_where_a_tenant_stands() -> None:
    shares = [Share("ada", 1, use={"a": 4, "b": 1}), Share("bo", 3, use={"b": 3}), Share("cy", 1, active=False)]
    stands = standing(shares, {"a": 8, "b": 4})
    assert stands == {"ada": pytest.approx(0.5 * 4), "bo": pytest.approx(0.75 / 3 * 4), "cy": 0}


def test_weight_rises_with_deficit_age_and_priority() -> None:
    assert weight(1, 1, 0) == 1000
    assert weight(1, 0, 0) > weight(1, 1, 0) > weight(1, 2, 0) >= weight(1, 1e9, 0) >= 1
    assert weight(2, 1, 0) == 2 * weight(1, 1, 0)
    assert weight(1, 1, 6 * 3600) == 2 * weight(1, 1, 0)


def test_jain() -> None:
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([1, 0, 0, 0]) == pytest.approx(0.25)
    assert jain([]) == 1


NODES = (Node("a", 8), Node("b", 8))
BOTH = frozenset({"a", "b"})


def test_the_biggest_borrower_gives_back_its_least_urgent_youngest() -> None:
    held = [
        Held("big-old", "big", "a", 4, 1, 900), Held("big-young", "big", "a", 4, 1, 30),
        Held("big-urgent", "big", "b", 4, 5, 10), Held("mid", "mid", "b", 4, 1, 5),
    ]  # fmt: skip
    found = preemption([Claim("t", "new", 4, 601, BOTH)], held, NODES, {"big": 4, "mid": 3, "new": 5}, bound=600)
    assert found is not None
    assert [victim.task for victim in found.victims] == ["big-young"]
    assert "new" in found.sentence
    assert "big held 12 of 4" in found.sentence


def test_nobody_gives_back_before_the_bound_or_for_more_than_is_owed() -> None:
    held = [Held("h", "big", "a", 8, 1, 9), Held("h2", "big", "b", 8, 1, 9)]
    owed_gpus = {"big": 8, "new": 8}
    assert preemption([Claim("t", "new", 8, 600, BOTH)], held, NODES, owed_gpus, bound=600) is None
    assert preemption([Claim("t", "new", 8, 601, BOTH)], held, NODES, owed_gpus, bound=600) is not None
    assert preemption([Claim("t", "new", 8, 601, BOTH)], held, NODES, {"big": 8, "new": 7}, bound=600) is None


@given(st.data())
def test_no_lender_falls_as_far_under_its_due_as_the_claimant_was_and_the_claim_fits(data: st.DataObject) -> None:
    tenants = ("ada", "bo", "cy")
    shares = [Share(tenant, data.draw(st.integers(1, 4))) for tenant in tenants]
    due = owed(shares, 16)
    assert sum(due.values()) <= 16
    held, free = [], {node.id: node.gpus for node in NODES}
    for at in range(data.draw(st.integers(0, 8))):
        node = data.draw(st.sampled_from(("a", "b")))
        gpus = data.draw(st.integers(0, free[node]))
        if gpus:
            free[node] -= gpus
            held.append(Held(f"h{at}", data.draw(st.sampled_from(tenants)), node, gpus, data.draw(st.integers(1, 3)), at))
    claim = Claim("t", "ada", data.draw(st.integers(1, 8)), 700, BOTH)
    found = preemption([claim], held, NODES, due, bound=600)
    if found is None:
        return
    assert free[found.node] + sum(victim.gpus for victim in found.victims) >= claim.gpus
    for tenant in tenants[1:]:
        gave = sum(victim.gpus for victim in found.victims if victim.tenant == tenant)
        if gave:
            left = sum(placed.gpus for placed in held if placed.tenant == tenant) - gave
            assert due[tenant] - left < due["ada"] - sum(placed.gpus for placed in held if placed.tenant == "ada")
