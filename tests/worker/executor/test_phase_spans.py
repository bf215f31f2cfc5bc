"""The spans of a placement's training phases: on their way before the event after which the service takes nothing more."""

from typing import Any

import pytest

from contract.messages.placement_messages import Placement
from contract.states import JOB_TERMINAL
from tests.worker.inside import Inside
from worker.executor.reporter import Reporter
from worker.pipe_messages import Detach

CALM = {"policy": "none", "eval_every": 4}
SPACE = {"learning_rate": [1e-2, 1e-3], "rank": [8], "batch_size": [4]}
ENDS = ("job_completed", "job_exited", "job_failed")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Phases and kinds of events in the order in which the training loop hands them to the reporter."""
    found: list[tuple[str, Any]] = []
    record, trace = Reporter.record, Reporter.trace

    def recorded(reporter: Reporter, *events: Any) -> None:
        found.extend((event.kind, event) for event in events)
        record(reporter, *events)

    def traced(reporter: Reporter, span: Any) -> None:
        found.append((f"span {span.name}", span))
        trace(reporter, span)

    monkeypatch.setattr(Reporter, "record", recorded)
    monkeypatch.setattr(Reporter, "trace", traced)
    return found


def traced(placement: Placement) -> Placement:
    return placement.model_copy(update={"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})


def steps_of(told: list[tuple[str, Any]]) -> float:
    """Steps of all spans of training, of which there is one for each phase."""
    phases = [(kind, span) for kind, span in told if kind in ("span warmup", "span train")]
    assert len({kind for kind, _ in phases}) == len(phases)
    return sum(span.counts["steps"] for _, span in phases)


def test_the_last_jobs_end_comes_after_the_span_of_its_training(fleet, placing, tmp_path, told):
    seen: list[str] = []
    fleet.on_report = lambda reported, report: seen.extend(span.name for span in report.spans)
    (reported,) = Inside(fleet, tmp_path).run(traced(placing(SPACE, early_exit=CALM, training={"epochs": 1})))
    assert set(reported.status.values()) <= JOB_TERMINAL
    kinds = [kind for kind, _ in told]
    last = max(at for at, kind in enumerate(kinds) if kind in ENDS)
    assert kinds.index("span train") < last < kinds.index("detached")
    assert steps_of(told[:last]) == 9
    assert "train" in seen


def test_a_placement_that_leaves_tells_the_span_of_its_training_before_it_is_gone(fleet, placing, tmp_path, told):
    executors: list[Any] = []
    placement = traced(placing(SPACE, early_exit=CALM, training={"epochs": 100}))

    def leave(reported: Any, report: Any) -> None:
        if executors and max(reported.step.values()) >= 2:
            executors.pop().handle_command(Detach(placement_id=placement.placement_id, keep=True))

    fleet.on_report = leave
    (reported,) = Inside(fleet, tmp_path).run(placement, prepare=executors.append, paced=True)
    assert not JOB_TERMINAL & set(reported.status.values())
    kinds = [kind for kind, _ in told]
    assert kinds.index("span train") < kinds.index("detached")
    assert steps_of(told) >= 2
