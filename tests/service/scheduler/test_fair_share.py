"""Shares, and who gives back: plain values in, plain values out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.scheduler.core.fair_share import Ask, Share, decayed, entered, entitled, jain, owed, standing, weight, weights
from service.scheduler.core.preemption import Claim, Held, next_bound, preemption
from service.scheduler.core.problem import Node


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


def test_what_one_does_not_want_the_others_are_owed() -> None:
    shares = [Share("ada", 2, demand=4), Share("bo", 1), Share("cy", 1, demand=100), Share("dee", 1, active=False)]
    assert owed(shares, 16) == {"ada": 4, "bo": 6, "cy": 6}
    assert owed([Share("ada", demand=3), Share("bo", demand=2)], 16) == {"ada": 3, "bo": 2}
    assert owed([], 16) == {}


@given(st.lists(st.tuples(st.floats(0.1, 10), st.none() | st.integers(0, 40)), min_size=1, max_size=8), st.integers(1, 128))
def test_dues_are_max_min_fair(wants: list[tuple[float, int | None]], gpus: int) -> None:
    shares = [Share(str(at), weight, demand=demand) for at, (weight, demand) in enumerate(wants)]
    due = owed(shares, gpus)
    bounded = sum(demand for _, demand in wants if demand is not None)
    assert sum(due.values()) == pytest.approx(min(gpus, bounded) if all(d is not None for _, d in wants) else gpus)
    level = max(due[share.tenant] / share.weight for share in shares)
    for share in shares:
        wants_all = share.demand is not None and due[share.tenant] >= share.demand - 1e-6
        assert wants_all or due[share.tenant] / share.weight == pytest.approx(level)


def test_a_due_covers_whole_tasks_and_always_one() -> None:
    assert entitled(4, 4, 8)
    assert not entitled(4, 5, 8)
    assert entitled(8, 0, 0.5)


def test_what_a_due_covers_goes_before_what_is_borrowed() -> None:
    asks = [Ask(f"hog{at}", "hog", 4, 10, 1, 0) for at in range(3)] + [Ask("new", "new", 4, 100_000, 1, 0)]
    shares = [Share("hog", held={"g": 4}, use={"g": 1}), Share("new", held={}, use={"g": 7})]
    found = weights(asks, shares, {"g": 16})
    ratio = {ask.task: ask.seconds * ask.gpus / found[ask.task] for ask in asks}
    covered, borrowed = sorted(ratio[f"hog{at}"] for at in range(3))[0], sorted(ratio[f"hog{at}"] for at in range(3))[1:]
    assert covered < min(borrowed) / 500
    assert found["new"] > 500 * weight(1, standing(shares, {"g": 16})["new"], 0)


def test_alone_there_is_nobody_to_have_a_right_against() -> None:
    shares = [Share("ada", held={"g": 4}, use={"g": 8}), Share("bo", active=False)]
    found = weights([Ask("t", "ada", 4, 10, 2, 0)], shares, {"g": 16})
    assert found["t"] == weight(2, standing(shares, {"g": 16})["ada"], 0)


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
    assert "big holds 12 of 4" in found.sentence


def test_nobody_gives_back_before_the_bound_or_for_more_than_is_owed() -> None:
    held = [Held("h", "big", "a", 8, 1, 9), Held("h2", "big", "b", 8, 1, 9)]
    owed_gpus = {"big": 8, "new": 8}
    assert preemption([Claim("t", "new", 8, 599, BOTH)], held, NODES, owed_gpus, bound=600) is None
    assert preemption([Claim("t", "new", 8, 601, BOTH)], held, NODES, owed_gpus, bound=600) is not None
    some = [held[0], Held("h2", "big", "b", 7, 1, 9), Held("mine", "new", "b", 1, 1, 9)]
    assert preemption([Claim("t", "new", 8, 601, BOTH)], some, NODES, owed_gpus, bound=600) is None


@given(st.data())
def test_no_lender_falls_as_far_under_its_due_as_the_claimant_was_and_the_claim_fits(data: st.DataObject) -> None:
    tenants = ("ada", "bo", "cy")
    shares = [Share(tenant, data.draw(st.integers(1, 4))) for tenant in tenants]
    due = owed(shares, 16)
    assert sum(due.values()) <= 16 + 1e-9
    held, free = [], {node.id: node.gpus for node in NODES}
    for at in range(data.draw(st.integers(0, 8))):
        node = data.draw(st.sampled_from(("a", "b")))
        gpus = data.draw(st.integers(0, free[node]))
        if gpus:
            free[node] -= gpus
            tenant, priority, spare = (
                data.draw(s) for s in (st.sampled_from(tenants), st.integers(1, 3), st.integers(0, gpus - 1))
            )
            held.append(Held(f"h{at}", tenant, node, gpus, priority, at, spare=spare))
    claim = Claim("t", "ada", data.draw(st.integers(1, 8)), 700, BOTH)
    found = preemption([claim], held, NODES, due, bound=600)
    if found is None:
        return
    assert free[found.node] + sum(victim.gpus for victim in found.victims) >= claim.gpus
    for tenant in tenants[1:]:
        gave = sum(victim.gives for victim in found.victims if victim.tenant == tenant)
        if gave:
            left = sum(placed.gpus for placed in held if placed.tenant == tenant) - gave
            assert due[tenant] - left < due["ada"] - sum(placed.gpus for placed in held if placed.tenant == "ada")


def test_a_claim_takes_room_that_the_plan_keeps_for_somebody_else() -> None:
    found = preemption([Claim("t", "new", 4, 600, BOTH)], [Held("h", "big", "a", 8, 1, 9)], NODES, {"big": 8, "new": 8}, 600)
    assert found is not None
    assert (found.node, found.victims) == ("b", ())


def test_where_room_is_scattered_a_small_one_moves_and_nobody_loses() -> None:
    held = [Held(f"{node}{at}", "big", node, 2, 1, at, BOTH) for node in ("a", "b") for at in range(2)]
    found = preemption([Claim("t", "new", 8, 600, BOTH)], held, NODES, {"big": 8, "new": 8}, 600)
    assert found is not None
    assert {victim.node for victim in found.victims} == {found.node}
    assert len(found.victims) == 2


def test_the_timer_knows_when_to_look_again() -> None:
    claims = [Claim("a", "ada", 1, 100, BOTH), Claim("b", "bo", 8, 500, BOTH), Claim("c", "ada", 1, 900, BOTH)]
    held = [Held("h", "bo", "a", 4, 1, 9)]
    assert next_bound(claims, held, {"ada": 8, "bo": 8}, 600) == 500  # b is not covered, c is past it
    assert next_bound(claims[1:], held, {"ada": 8, "bo": 8}, 600) is None
