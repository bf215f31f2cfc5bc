"""Shares, and who gives back: plain values in, plain values out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.scheduler.core.fair_share import (
    Ask,
    Share,
    completion_weight,
    completion_weights,
    decayed,
    entered,
    entitled,
    owed,
    standing,
    total,
    worth,
)
from service.scheduler.core.preemption.owed_gpus import Held, Preemptor, next_bound, preemption
from service.scheduler.core.problem import PlanNode, Queued, SchedulingProblem, Start
from service.scheduler.core.rules import backfill


def test_use_forgets_by_halves_and_settles_at_what_is_held() -> None:
    assert decayed(8, 0, seconds=100, half_life=100) == 4
    assert decayed(0, 8, seconds=100, half_life=100) == 4
    assert decayed(8, 8, seconds=1e9, half_life=100) == pytest.approx(8)


def test_a_start_counts_at_once_as_much_as_holding_will() -> None:
    assert entered(2, 4, seconds=300, half_life=300) == 2 + 4 / 2
    assert entered(2, 4, seconds=600, half_life=300) == 2 + 4 * 3 / 4


MIXED = {"NVIDIA H100 80GB HBM3": 4, "NVIDIA A100-SXM4-80GB": 10, "cpu": 64}
H100, A100, CPU = MIXED


def test_types_count_by_what_they_can_do() -> None:
    worths = worth(MIXED)
    assert worths == {H100: 1, A100: pytest.approx(0.4), CPU: pytest.approx(0, abs=1e-4)}
    assert total(MIXED, worths) == pytest.approx(8, abs=0.01)
    assert worth(["cpu"]) == {"cpu": 1}, "a fleet of one type is counted in its devices"
    assert worth(["made up", "also made up"]) == {"made up": 1, "also made up": 1}
    assert worth([]) == {}


def test_use_of_all_types_and_the_weight_decide_where_a_tenant_stands() -> None:
    shares = [
        Share("ada", 1, use={H100: 2, A100: 5}),
        Share("bo", 3, use={A100: 5}),
        Share("cy", 1, use={CPU: 64}, active=False),
    ]
    stands = standing(shares, MIXED)
    assert stands["ada"] == pytest.approx(4 / 8 * 4, rel=0.01)
    assert stands["bo"] == pytest.approx(2 / 8 / 3 * 4, rel=0.01)
    assert stands["cy"] < 0.01, "every CPU slot of the fleet is no part of it to speak of"


def test_cpu_slots_take_nothing_of_a_due_for_gpus() -> None:
    """Holding all CPU slots, `ada` is owed her two H100 all the same; holding them, she is not owed the third."""
    ask = Ask("t", "ada", 1, 100, 1, 0, worth=1.0)
    other = Share("bo", held={H100: 2}, demand=8)
    slots = Share("ada", held={CPU: 64}, demand=4)
    full = Share("ada", held={CPU: 64, H100: 4}, demand=4)
    covered = completion_weight(1, 0, 0, covered=True)
    assert completion_weights([ask], [slots, other], MIXED)["t"] == pytest.approx(covered, rel=0.01)
    assert completion_weights([ask], [full, other], MIXED)["t"] < covered / 500


TENANTS = st.sampled_from(["ada", "bo", "cy"])
ASKS = st.lists(
    st.tuples(TENANTS, st.integers(1, 8), st.integers(1, 10_000), st.integers(1, 100), st.floats(0, 1e6)),
    min_size=1,
    max_size=12,
)


def asked(rows: list[tuple], plain: str = "", times: int = 1) -> list[Ask]:
    """The asks, those of one tenant all alike in priority, everybody's `times` as high."""
    return [
        Ask(str(at), tenant, gpus, seconds, 1 if tenant == plain else priority * times, waited)
        for at, (tenant, gpus, seconds, priority, waited) in enumerate(rows)
    ]


@given(ASKS, st.dictionaries(TENANTS, st.integers(0, 12), min_size=3), st.dictionaries(TENANTS, st.floats(0, 12), min_size=3))
def test_a_priority_gives_nothing_against_others(rows: list[tuple], held: dict[str, int], used: dict[str, float]) -> None:
    """Nobody else's task weighs otherwise for it, and none of its own more than it would without: at the best as much."""
    shares = [Share(name, held={"g": held[name]}, use={"g": used[name]}) for name in held]
    with_, without = (
        completion_weights(asked(rows), shares, {"g": 16}),
        completion_weights(asked(rows, plain="ada"), shares, {"g": 16}),
    )
    stands, due = standing(shares, {"g": 16}), owed(shares, 16)
    covered = {True: 0, False: 0}
    for ask in asked(rows):
        if ask.tenant != "ada":
            assert with_[ask.task] == without[ask.task]
            continue
        most = [completion_weight(1, stands["ada"], ask.waited, covered) for covered in (False, True)]
        assert with_[ask.task] <= most[1]
        by_right = with_[ask.task] > most[0]
        covered[by_right] += ask.gpus
    fits = covered[True] + held["ada"] <= due["ada"] + 1e-6
    one_always = held["ada"] == 0 and covered[True] <= 8 + due["ada"]
    assert fits or one_always or covered[True] == 0
    assert completion_weights(asked(rows, times=7), shares, {"g": 16}) == with_, (
        "what counts is how priorities compare in a tenant"
    )


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 1000)), min_size=2, max_size=10))
def test_a_priority_orders_its_own_tenants_tasks(rows: list[tuple[int, int]]) -> None:
    """Of tasks that are alike the one of higher priority has the smaller seconds / weight, which is what starts first."""
    asks = [Ask(str(at), "ada", 1, 100, priority, 0) for at, (priority, _) in enumerate(rows)]
    for shares in ([Share("ada")], [Share("ada", held={"g": 8}, use={"g": 8}), Share("bo", demand=8)]):
        found = completion_weights(asks, shares, {"g": 16})
        for one in asks:
            for other in asks:
                assert one.priority <= other.priority or found[one.task] >= found[other.task]


def test_a_high_priority_everywhere_changes_no_plan() -> None:
    def plan(priority: int) -> list[Start]:
        asks = [
            Ask(f"{tenant}{at}", tenant, 2, 100 + at, priority if tenant == "ada" else 1, 0)
            for at in range(6)
            for tenant in ("ada", "bo")
        ]
        found = completion_weights(asks, [Share("ada", demand=12), Share("bo", demand=12)], {"g": 4})
        queued = tuple(Queued(ask.task, ask.gpus, found[ask.task], (ask.seconds,), tenant=ask.tenant) for ask in asks)
        return list(backfill(SchedulingProblem((PlanNode("n", 4),), (), queued)))

    assert plan(100) == plan(1)


def test_weight_rises_with_deficit_age_and_urgency() -> None:
    assert completion_weight(1, 1, 0) == 1000
    assert completion_weight(1, 1e9, 0) == 4, "a tenant far above its share weighs 2 ** -8 of that, and its tasks still differ"
    assert (
        completion_weight(1, 0, 0)
        > completion_weight(1, 1, 0)
        > completion_weight(1, 2, 0)
        >= completion_weight(1, 1e9, 0)
        >= 1
    )
    assert 2 * completion_weight(0.5, 1, 0) == completion_weight(1, 1, 0)
    assert completion_weight(1, 1, 6 * 3600) == 2 * completion_weight(1, 1, 0)


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
    assert entitled(8, 0.001, 0.5), "CPU slots beside GPUs are as good as none"


def test_what_a_due_covers_goes_before_what_is_borrowed() -> None:
    asks = [Ask(f"hog{at}", "hog", 4, 10, 1, 0) for at in range(3)] + [Ask("new", "new", 4, 100_000, 1, 0)]
    shares = [Share("hog", held={"g": 4}, use={"g": 1}), Share("new", held={}, use={"g": 7})]
    found = completion_weights(asks, shares, {"g": 16})
    ratio = {ask.task: ask.seconds * ask.gpus / found[ask.task] for ask in asks}
    covered, borrowed = sorted(ratio[f"hog{at}"] for at in range(3))[0], sorted(ratio[f"hog{at}"] for at in range(3))[1:]
    assert covered < min(borrowed) / 500
    assert found["new"] > 500 * completion_weight(1, standing(shares, {"g": 16})["new"], 0)


def test_alone_there_is_nobody_to_have_a_right_against() -> None:
    shares = [Share("ada", held={"g": 4}, use={"g": 8}), Share("bo", active=False)]
    found = completion_weights([Ask("t", "ada", 4, 10, 2, 0)], shares, {"g": 16})
    assert found["t"] == completion_weight(1, standing(shares, {"g": 16})["ada"], 0)


NODES = (PlanNode("a", 8), PlanNode("b", 8))
BOTH = frozenset({"a", "b"})


def test_the_biggest_borrower_gives_back_its_least_urgent_youngest() -> None:
    held = [
        Held("big-old", "big", "a", 4, 1, 900), Held("big-young", "big", "a", 4, 1, 30),
        Held("big-urgent", "big", "b", 4, 5, 10), Held("mid", "mid", "b", 4, 1, 5),
    ]  # fmt: skip
    found = preemption([Preemptor("t", "new", 4, 601, BOTH)], held, NODES, {"big": 4, "mid": 3, "new": 5}, bound=600)
    assert found is not None
    assert [victim.task for victim in found.victims] == ["big-young"]
    assert "new" in found.sentence
    assert "big holds 12 of 4" in found.sentence


def test_who_has_given_back_is_no_longer_the_biggest_borrower() -> None:
    held = [Held(f"one{at}", "one", "a", 4, 1, at) for at in range(2)]
    held += [Held("two0", "two", "a", 4, 1, 9), Held("two1", "two", "b", 4, 1, 9)]
    nodes = (PlanNode("a", 12), PlanNode("b", 8))
    asks = [Preemptor("t", "new", 8, 601, frozenset({"a"}))]
    found = preemption(asks, held, nodes, {"one": 2, "two": 3, "new": 8}, bound=600)
    assert found is not None
    assert [victim.task for victim in found.victims] == ["one0", "two0"]


def test_priorities_of_two_tenants_are_not_compared() -> None:
    """Both borrow as much. `loud` calls all it runs most urgent, and is spared no more for it."""
    held = [Held("quiet", "quiet", "a", 8, 1, 900), Held("loud", "loud", "b", 8, 100, 30)]
    found = preemption([Preemptor("t", "new", 8, 601, BOTH)], held, NODES, {"quiet": 2, "loud": 2, "new": 12}, bound=600)
    assert found is not None
    assert [victim.task for victim in found.victims] == ["loud"], "the younger"


def test_whoever_holds_cpu_slots_alone_is_no_borrower() -> None:
    nodes = [PlanNode("gpus", 8), PlanNode("slots", 64, worth=4e-5)]
    held = [Held("s", "slots", "slots", 64, 1, 1), Held("h", "big", "gpus", 8, 1, 9)]  # to stop the slots would lose less
    due = {"slots": 2.0, "big": 3.0, "new": 5.0}
    preemptor = Preemptor("t", "new", 4, 601, frozenset({"gpus", "slots"}))
    found = preemption([preemptor], held, nodes, due, bound=600)
    assert found is not None
    assert [victim.task for victim in found.victims] == ["h"]
    assert "big holds 8 of 3 GPUs" in found.sentence


def test_nobody_gives_back_before_the_bound_or_for_more_than_is_owed() -> None:
    held = [Held("h", "big", "a", 8, 1, 9), Held("h2", "big", "b", 8, 1, 9)]
    owed_gpus = {"big": 8, "new": 8}
    assert preemption([Preemptor("t", "new", 8, 599, BOTH)], held, NODES, owed_gpus, bound=600) is None
    assert preemption([Preemptor("t", "new", 8, 601, BOTH)], held, NODES, owed_gpus, bound=600) is not None
    some = [held[0], Held("h2", "big", "b", 7, 1, 9), Held("mine", "new", "b", 1, 1, 9)]
    assert preemption([Preemptor("t", "new", 8, 601, BOTH)], some, NODES, owed_gpus, bound=600) is None


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
    preemptor = Preemptor("t", "ada", data.draw(st.integers(1, 8)), 700, BOTH)
    found = preemption([preemptor], held, NODES, due, bound=600)
    if found is None:
        return
    assert free[found.node] + sum(victim.gpus for victim in found.victims) >= preemptor.gpus
    for tenant in tenants[1:]:
        gave = sum(victim.gives for victim in found.victims if victim.tenant == tenant)
        if gave:
            left = sum(placed.gpus for placed in held if placed.tenant == tenant) - gave
            assert due[tenant] - left < due["ada"] - sum(placed.gpus for placed in held if placed.tenant == "ada")


def test_a_claim_takes_room_that_the_plan_keeps_for_somebody_else() -> None:
    found = preemption(
        [Preemptor("t", "new", 4, 600, BOTH)], [Held("h", "big", "a", 8, 1, 9)], NODES, {"big": 8, "new": 8}, 600
    )
    assert found is not None
    assert (found.node, found.victims) == ("b", ())


def test_where_room_is_scattered_a_small_one_moves_and_nobody_loses() -> None:
    held = [Held(f"{node}{at}", "big", node, 2, 1, at, BOTH) for node in ("a", "b") for at in range(2)]
    found = preemption([Preemptor("t", "new", 8, 600, BOTH)], held, NODES, {"big": 8, "new": 8}, 600)
    assert found is not None
    assert {victim.node for victim in found.victims} == {found.node}
    assert len(found.victims) == 2


def test_the_timer_knows_when_to_look_again() -> None:
    preemptors = [Preemptor("a", "ada", 1, 100, BOTH), Preemptor("b", "bo", 8, 500, BOTH), Preemptor("c", "ada", 1, 900, BOTH)]
    held = [Held("h", "bo", "a", 4, 1, 9)]
    assert next_bound(preemptors, held, {"ada": 8, "bo": 8}, 600) == 500  # b is not covered, c is past it
    assert next_bound(preemptors[1:], held, {"ada": 8, "bo": 8}, 600) is None
