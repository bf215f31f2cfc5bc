"""What a start writes while many wait, in small: real processes, a fake node; and the gate, which must be able to say no."""

from dataclasses import replace
from datetime import timedelta

import pytest

from benchmarks.fake_node import TOKENS
from benchmarks.growth import BOUND, Run, Sample, figures, gate, grown, measure

AT_PACE = 25.0  # seconds that an idle machine takes for the small run's starts and to settle
LATE = 15.0  # a placement that outlasts its expected end by so many seconds makes a plan, which may notify all who wait


def test_a_start_writes_no_more_rows_because_many_wait() -> None:
    """200 wait: a row for each of them would be twice what the whole life of one task may write.

    Those who wait are notified when their starts move by much, as they do where the machine stalls. Each notice is a row of the
    task and one of its history: these are taken off, and bounded by the time that was lost. Nothing that was written while the
    queue was filled is swept, however long that took.
    """
    run = measure(queue=200, starts=5, rate=2.0, slots=2, every=100, keep=timedelta(hours=3))
    without = {name: run.written[name] - run.notified for name in ("tasks", "plan_changes")}
    of_starts = replace(run, written=run.written | without)
    assert gate(of_starts)["passed"], run
    assert sum(of_starts.per_start.values()) <= BOUND < run.queue
    assert of_starts.per_start["tasks"] < 20
    assert of_starts.per_start["plan_changes"] < 10
    late = max(0.0, run.counted_seconds - AT_PACE)
    assert figures(run)["notified_per_start"] < 5 + run.queue * late / LATE / run.starts, run


def sample(starts: int, rows: int = 600, inserted: int = 0) -> Sample:
    held = {"tasks": starts, "plans": 100, "audit_entries": rows}
    return Sample(starts, held, held | {"audit_entries": inserted}, {"tasks": 8192})


USED = {"trained_tokens": 10 * TOKENS, "gpu_seconds": 1.0}
GOOD = Run(10, 100, 10.0, {"tasks": 90, "plans": 10}, 3, (USED, USED), [sample(at) for at in range(8)])


def test_what_stays_for_good_has_not_grown_and_what_is_swept_may_breathe() -> None:
    assert gate(GOOD)["passed"]
    assert grown(GOOD.samples) == {}
    assert grown([*GOOD.samples[:-1], sample(8, rows=2000, inserted=2000)]) == {}, "so many were written lately"
    assert figures(GOOD) == {
        "queue": 100.0, "starts": 10.0, "starts_per_second": 1.0, "rows_per_start": 10.0, "notified_per_start": 0.3,
        "swept_rows_middle": 700.0, "swept_rows_end": 700.0, "bytes_middle": 8192.0, "bytes_end": 8192.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "flaw",
    [
        {"written": {"tasks": 10 * int(BOUND) + 1}},
        {"usage": (USED, USED | {"gpu_seconds": 2.0})},
        {"usage": (USED | {"trained_tokens": 1}, USED | {"trained_tokens": 1})},
        {"samples": [sample(at, rows=600 + 100 * at, inserted=600 + 100 * at) for at in range(8)]},
    ],
    ids=["rows", "billed", "lost", "grown"],
)
def test_the_gate_refuses(flaw: dict[str, object]) -> None:
    assert not gate(replace(GOOD, **flaw))["passed"]
