"""What failed passes show of the memory holds as long as a task is there that was beside them."""

from worker.adapters.capacity_tracker import CapacityTracker
from worker.model.plain.trainer import OutOfMemory
from worker.policy.activations import Activations, Need
from worker.policy.adapter_memory_model import Capacity, MemoryModel
from worker.policy.job_record import JobKey

MEASURED = Capacity(MemoryModel(0, 1, 0), 10_000, 4096)  # a byte a token


def need(longest: int) -> Need:
    return Need(MEASURED, longest, (8,), Activations(False, "kept"))


def after_a_failure(*placements: str) -> CapacityTracker:
    """These tasks have rows of 2,000 tokens, and a pass of one of them found no memory."""
    tracker = CapacityTracker(MEASURED)
    for placement in placements:
        tracker.add_placement(placement, need(2000))
    assert tracker.shrink_after_oom(OutOfMemory(2000), [JobKey(placements[0], 0)], 0).keys() == {JobKey(placements[0], 0)}
    assert tracker.capacity.model.per_token == 5
    return tracker


def test_a_task_that_comes_once_all_have_left_is_measured_by_its_own_passes() -> None:
    tracker = after_a_failure("a")
    tracker.remove_placement("a")
    assert tracker.capacity == MEASURED
    tracker.add_placement("b", need(2000))
    assert (tracker.capacity.model, tracker.capacity.piece_tokens) == (MEASURED.model, MEASURED.piece_tokens)
    assert tracker.piece_tokens("b") == MEASURED.piece_tokens


def test_a_task_that_comes_beside_one_that_was_there_knows_of_it() -> None:
    tracker = after_a_failure("a", "b")
    tracker.remove_placement("a")
    tracker.add_placement("c", need(2000))
    assert tracker.capacity.model.per_token == 5
    assert tracker.capacity.piece_tokens == 1000
    for placement in ("b", "c"):
        tracker.remove_placement(placement)
    assert tracker.capacity == MEASURED


def test_what_else_is_known_stays_where_nothing_failed() -> None:
    tracker = CapacityTracker(Capacity(MemoryModel(0, 1, 0), 100_000, 4096, most_pass_tokens=16_384))
    tracker.add_placement("a", need(2000))
    tracker.capacity = Capacity(MemoryModel(0, 1, 0), 100_000, 4096, most_pass_tokens=16_384)
    assert tracker.lengthen(16_384, 0)
    longer = tracker.capacity.long_pass_tokens
    tracker.remove_placement("a")
    assert tracker.capacity.long_pass_tokens == longer > 4096
