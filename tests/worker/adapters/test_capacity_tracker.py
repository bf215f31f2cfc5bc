"""What failed passes show of the memory holds as long as a task is there that was beside them."""

from dataclasses import replace

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


def test_a_kept_pass_fails_no_neighbour_that_recomputes() -> None:
    """It had no part in the pass, however long its sequences are."""
    both = replace(MEASURED, recomputed=MEASURED.model)
    tracker = CapacityTracker(both)
    tracker.add_placement("recomputes", Need(both, 2000, (8,), Activations(True, "recomputed")))
    tracker.add_placement("keeps", Need(both, 300, (8,), Activations(False, "kept")))
    jobs = [JobKey("recomputes", 0), JobKey("keeps", 0)]
    kept = OutOfMemory(1800)
    kept.sole_placement = "keeps"
    assert tracker.shrink_after_oom(kept, jobs, 0) == {}
    assert tracker.piece_tokens("keeps") == 900
    assert tracker.shrink_after_oom(OutOfMemory(1800, recompute=True), jobs, 0).keys() == {jobs[0]}


def test_a_kept_task_whose_row_cannot_be_evaluated_fails() -> None:
    """A pass without gradients counts as one that recomputes, which takes no more than one that keeps."""
    tracker = CapacityTracker(MEASURED)
    tracker.add_placement("keeps", need(2000))
    failed = tracker.shrink_after_oom(OutOfMemory(2000, recompute=True), [JobKey("keeps", 0)], 0)
    assert failed.keys() == {JobKey("keeps", 0)}


def test_the_task_of_a_pass_that_cannot_be_shortened_fails_whatever_the_pass_says_of_itself() -> None:
    """Else it would be tried for ever."""
    tracker = CapacityTracker(MEASURED)
    tracker.add_placement("recomputes", Need(MEASURED, 2000, (8,), Activations(True, "recomputed")))
    own = OutOfMemory(2000, recompute=False)
    own.sole_placement = "recomputes"
    assert tracker.shrink_after_oom(own, [JobKey("recomputes", 0)], 0).keys() == {JobKey("recomputes", 0)}
