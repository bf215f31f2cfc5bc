"""The share of generation beside training: never exceeded, used where there is work, and split between its classes."""

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from worker.policy.generation_share import SAVED_SECONDS, GenerationClass, GenerationShare

EVALUATIONS, COMPLETIONS = GenerationClass
PASS = {EVALUATIONS: 0.03, COMPLETIONS: 0.0075}  # seconds


def taken(share: GenerationShare, step_seconds: list[float], tenants: dict[GenerationClass, int]) -> Counter[GenerationClass]:
    """Seconds of each class beside steps of these lengths, where all that serve somebody have endless work."""
    found = Counter[GenerationClass]()
    for step in step_seconds:
        for kind in GenerationClass:
            while tenants[kind] and share.allows(kind):
                share.generated(kind, PASS[kind])
                found[kind] += PASS[kind]
        share.trained(step, tenants)
    return found


@given(
    st.lists(st.floats(0.001, 10), min_size=1, max_size=300),
    st.floats(0, 0.5),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_both_classes_together_take_at_most_the_share(steps, part, served) -> None:
    found = taken(GenerationShare(part), steps, dict(zip(GenerationClass, served, strict=True)))
    assert found.total() <= part * sum(steps) + 2 * SAVED_SECONDS + sum(PASS.values()) + 1e-6


def test_a_class_alone_gets_the_whole_share() -> None:
    for kind in GenerationClass:
        for step in (0.05, 20.0):  # a step may earn more than is saved
            found = taken(GenerationShare(0.1), [step] * 1000, {**dict.fromkeys(GenerationClass, 0), kind: 1})
            assert found[kind] > 0.99 * 0.1 * step * 1000


def test_classes_that_are_busy_get_parts_by_their_tenants() -> None:
    found = taken(GenerationShare(0.1), [0.1] * 10_000, {EVALUATIONS: 1, COMPLETIONS: 3})
    assert math.isclose(found[COMPLETIONS] / found[EVALUATIONS], 3, rel_tol=0.05)


def test_a_first_completion_finds_its_savings_beside_an_endless_evaluation() -> None:
    share = GenerationShare(0.1)
    taken(share, [0.1] * 1000, {EVALUATIONS: 9, COMPLETIONS: 0})
    passes = 0
    while share.allows(COMPLETIONS):
        share.generated(COMPLETIONS, PASS[COMPLETIONS])
        passes += 1
    assert passes >= SAVED_SECONDS / PASS[COMPLETIONS]


def test_a_share_of_nothing_lets_nothing_run_once_savings_are_gone() -> None:
    share = GenerationShare(0.0)
    for kind in GenerationClass:
        share.generated(kind, math.nextafter(SAVED_SECONDS, 1))
    share.trained(1e9, dict.fromkeys(GenerationClass, 1))
    assert not any(share.allows(kind) for kind in GenerationClass)
