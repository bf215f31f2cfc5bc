"""Who gives GPUs back, at the bounds of the rule and where GPUs count by their worth."""

from service.scheduler.core.preemption.owed_gpus import Held, Preemptor, preemption
from service.scheduler.core.problem import PlanNode


def test_no_lender_falls_exactly_as_far_under_its_due_as_the_preemptor_was() -> None:
    """The two would preempt each other in turns."""
    held, preemptor = [Held("h", "big", "a", 8, 1, 9)], Preemptor("t", "new", 4, 601, frozenset({"a"}))

    def found(big: float, new: float) -> bool:
        return preemption([preemptor], held, [PlanNode("a", 8)], {"big": big, "new": new}, bound=600) is not None

    assert [found(4.0, 4.0), found(3.5, 4.0), found(4.0, 4.5)] == [False, True, True]


def test_a_lender_has_given_back_what_its_gpus_are_worth() -> None:
    """One borrows 3, two 1.5; what one gives first is worth 1, so it is still the biggest."""
    held = [Held(f"one{at}", "one", "a", 2, 1, at) for at in range(3)]
    held += [Held("two0", "two", "a", 2, 1, 9), Held("two1", "two", "b", 1, 1, 9)]
    nodes = [PlanNode("a", 8, worth=0.5), PlanNode("b", 1, worth=0.5)]
    preemptor = Preemptor("t", "new", 4, 601, frozenset({"a"}))
    found = preemption([preemptor], held, nodes, {"one": 0.0, "two": 0.0, "new": 4.0}, bound=600)
    assert found is not None
    assert [victim.task for victim in found.victims] == ["one0", "one1"]
