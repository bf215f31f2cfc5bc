"""The reporter: order without gaps, through outages, under its lease. And how points are joined, against their plain list."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from contract.job_config import JobConfig
from contract.messages.adapter_manifest import AdapterFile, AdapterManifest, Lineage
from contract.messages.placement_messages import Placement
from contract.messages.report_messages import (
    AdapterKept,
    Attached,
    Checkpointed,
    GeneratedText,
    JobCompleted,
    JobMoved,
    Points,
    Report,
    ReportEvent,
    TextsEvaluated,
    Throughput,
)
from contract.messages.span_messages import MOST_SPANS, PhaseSpan
from contract.states import JobStatus
from tests.worker.fleet import Fleet
from worker.api_client import PlacementLink
from worker.boot_clock import boot_now
from worker.executor.placement.placement_lease import Lease
from worker.executor.placement.placement_phases import MOST_PHASES, PlacementPhases
from worker.executor.reporter import Reporter, events_of_report


def point(job: int, step: int, series: str = "train_loss") -> Points:
    return Points(job=job, series=series, steps=[step], values=[step / 8])


MOVED = JobMoved(job=0, status=JobStatus.WARMUP, step=0)
PATIENCE = 120.0  # seconds after which a test gives up
WORK = Throughput(steps=1, tokens=1, seconds=1.0, micro_batches=1, forwards=1)

EVENTS = st.lists(
    st.one_of(
        st.builds(lambda job, series: ("point", job, series), st.integers(0, 3), st.sampled_from(["train_loss", "val_loss"])),
        st.builds(lambda job: ("moved", job), st.integers(0, 3)),
        st.just(("checkpointed",)),
        st.just(("work",)),
    ),
    max_size=900,
)


def told(kinds: list[tuple]) -> list[ReportEvent]:
    steps: dict[tuple, int] = {}
    events: list[ReportEvent] = []
    for kind in kinds:
        if kind[0] == "point":
            steps[kind] = steps.get(kind, 0) + 1
            events.append(point(kind[1], steps[kind], kind[2]))
        elif kind[0] == "moved":
            events.append(MOVED.model_copy(update={"job": kind[1]}))
        else:
            events.append(WORK if kind[0] == "work" else Checkpointed(jobs={}))
    return events


@given(EVENTS)
def test_joining_loses_nothing_and_keeps_the_order_that_matters(kinds):
    waiting = told(kinds)
    sent: list[ReportEvent] = []
    left = waiting
    while left:
        events, used = events_of_report(left)
        assert 0 < used <= len(left)
        Report(fence=1, seq=1, events=events)  # within the limits of a report and of its points
        sent.extend(events)
        left = left[used:]

    def flat(events: list[ReportEvent]) -> dict[object, list]:
        """What is said about each job, in order, points one by one; and what is said of none, with the points before it."""
        about: dict[object, list] = {}
        for event in events:
            if isinstance(event, Points):
                entries = [(event.series, step) for step in event.steps]
                about.setdefault((event.job, event.series), []).extend(entries)
            elif isinstance(event, JobMoved):
                for series in ("train_loss", "val_loss"):
                    about.setdefault((event.job, series), []).append("moved")
            elif isinstance(event, Checkpointed):
                for job in range(4):
                    for series in ("train_loss", "val_loss"):
                        about.setdefault((job, series), []).append("checkpointed")
        return about

    assert flat(sent) == flat(waiting)
    assert sum(isinstance(e, Throughput) for e in sent) == sum(isinstance(e, Throughput) for e in waiting)


def test_a_report_holds_the_texts_of_one_evaluation_at_most():
    """Each may take half of what a report may."""
    text = GeneratedText(prompt="2+2?", reference="4", text="4", finish_reason="stop")
    without = TextsEvaluated(job=0, prompts=1, scores={})
    full = without.model_copy(update={"texts": [text]})
    waiting = [without, full, point(0, 1), without, full, full]
    reports = []
    while waiting:
        events, used = events_of_report(waiting)
        reports.append(events)
        waiting = waiting[used:]
    assert reports == [[without, full, point(0, 1), without], [full], [full]]


def test_an_adapter_comes_with_the_end_of_its_job():
    """A crash between them takes the job back, and with it an adapter that a task may start from by then."""
    config = JobConfig(learning_rate=1e-4, rank=8, alpha=16.0, batch_size=4, seed=0)
    origin = {"base_model": "tiny", "base_revision": "a" * 40, "dataset_sha256": "b" * 64, "config": config}
    lineage = Lineage(task_id="task_1", job_id="job_1", **origin)
    names = ("adapter_config.json", "adapter_model.safetensors")
    files = [AdapterFile(path=name, sha256="c" * 64, bytes=1) for name in names]
    kept = AdapterKept(job=0, manifest=AdapterManifest(files=files, step=1, val_loss=1.0, lineage=lineage))
    completed = JobCompleted(job=0, step=1, best_step=1, best_val_loss=1.0)
    before = [MOVED.model_copy(update={"step": step}) for step in range(511)]
    assert events_of_report([*before, kept, completed, WORK]) == (before, 511)
    assert events_of_report([kept, completed, WORK]) == ([kept, completed, WORK], 3)
    assert events_of_report([*before[1:], kept, completed, WORK]) == ([*before[1:], kept, completed], 512)


def test_a_steady_curve_takes_few_events():
    events, used = events_of_report([point(job, step) for step in range(1, 101) for job in range(8)])
    assert used == 800
    assert [(e.job, len(e.steps)) for e in events] == [(job, 100) for job in range(8)]


class Spoken:
    """A reporter of one placement against a fleet."""

    def __init__(self, fleet: Fleet, placement: Placement, seconds: float = 900.0) -> None:
        self.reported = fleet.place(placement)
        self.lease = Lease(placement.placement_id, placement.fence, placement.token, boot_now() + seconds)
        self.over: list[tuple[bool, str]] = []
        self.ended = threading.Event()
        self.link = PlacementLink(fleet.url)
        self.reporter = Reporter(self.link, self.lease, placement.next_seq, self._over)

    def _over(self, lost: bool, detail: str) -> None:
        self.over.append((lost, detail))
        self.ended.set()


def attached() -> Attached:
    return Attached(train_rows=1, validation_rows=1, truncated_rows=0, skipped_rows=0, total_steps={0: 1}, warmup_steps={0: 1})


def test_an_outage_only_makes_it_later(fleet, placing):
    spoken = Spoken(fleet, placing({"learning_rate": [1e-3]}))
    spoken.reporter.record(attached(), MOVED)
    assert spoken.reporter.drain(PATIENCE)
    fleet.down = True
    for step in range(1, 301):
        spoken.reporter.point(0, "train_loss", step, 1.0)
    assert not spoken.reporter.drain(0.5)
    before = len(fleet.requests)
    fleet.until(lambda: len(fleet.requests) >= before + 2)  # it goes on trying
    fleet.down = False
    assert spoken.reporter.drain(PATIENCE)
    assert list(spoken.reported.curves[0, "train_loss"]) == list(range(1, 301))
    assert spoken.over == []


def test_an_answer_that_was_lost_is_asked_for_again_and_nothing_is_told_twice(fleet, placing):
    spoken = Spoken(fleet, placing({"learning_rate": [1e-3]}))
    lose = iter([True, False, True, False])
    applied = fleet.answer

    def answer(method, path, bearer, body):
        status, said = applied(method, path, bearer, body)
        return (502, b"") if path.endswith("/reports") and next(lose, False) else (status, said)

    fleet.answer = answer
    spoken.reporter.record(attached(), MOVED)
    spoken.reporter.point(0, "train_loss", 1, 1.0)
    assert spoken.reporter.drain(PATIENCE)
    spoken.reporter.point(0, "train_loss", 2, 1.0)
    assert spoken.reporter.drain(PATIENCE)
    assert spoken.reported.curves[0, "train_loss"] == {1: 1.0, 2: 1.0}
    assert len(spoken.reported.of(Attached)) == 1


def test_a_stale_fence_ends_it_quietly(fleet, placing):
    spoken = Spoken(fleet, placing({"learning_rate": [1e-3]}))
    fleet.end("p1")
    spoken.reporter.record(attached())
    assert spoken.ended.wait(PATIENCE)
    assert [lost for lost, _ in spoken.over] == [False]
    assert spoken.reported.events == []


def test_reports_that_the_service_forgot_are_said_again(fleet, placing):
    spoken = Spoken(fleet, placing({"learning_rate": [1e-3]}))
    spoken.reporter.record(attached(), MOVED)
    for step in (1, 2, 3):
        spoken.reporter.point(0, "train_loss", step, 1.0)
        assert spoken.reporter.drain(PATIENCE)
    assert spoken.reported.last_seq >= 3
    with fleet.lock:  # as after a database that was restored to an earlier moment
        spoken.reported.last_seq = 1
        spoken.reported.curves.clear()
    spoken.reporter.point(0, "train_loss", 4, 1.0)
    assert spoken.reporter.drain(PATIENCE)
    assert list(spoken.reported.curves[0, "train_loss"])[-3:] == [2, 3, 4]


def test_a_refused_report_gives_the_placement_back(fleet, placing):
    spoken = Spoken(fleet, placing({"learning_rate": [1e-3]}))
    spoken.reporter.record(JobMoved(job=0, status=JobStatus.PARKED, step=1))  # from pending: no such way
    assert spoken.ended.wait(PATIENCE)
    assert spoken.over[0][0]
    assert fleet.refused.pop().startswith("POST")


def test_past_its_lease_nothing_is_sent(fleet, placing):
    spoken = Spoken(fleet, placing({"learning_rate": [1e-3]}), seconds=-1.0)
    spoken.reporter.record(attached())
    assert spoken.ended.wait(PATIENCE)
    assert spoken.over[0][0]
    assert fleet.requests == []


def test_points_are_told_without_anything_urgent(fleet, placing):
    spoken = Spoken(fleet, placing({"learning_rate": [1e-3]}))
    spoken.reporter.record(attached(), MOVED)
    assert spoken.reporter.drain(PATIENCE)
    spoken.reporter.point(0, "train_loss", 1, 1.0)
    fleet.until(lambda: spoken.reported.curves.get((0, "train_loss")) == {1: 1.0})


def test_phases_go_along_with_reports_once_and_in_order(fleet, placing):
    spoken = Spoken(fleet, placing({"learning_rate": [1e-3]}))
    phases = PlacementPhases(spoken.reporter.trace)
    told: list[list[int | None]] = []
    fleet.on_report = lambda _, report: told.append([span.job for span in report.spans])
    fleet.down = True
    for number in range(MOST_SPANS + 3):
        phases.over(f"phase {number}", 1.0, number)
    spoken.reporter.record(attached(), MOVED)
    before = len(fleet.requests)
    fleet.until(lambda: len(fleet.requests) >= before + 2)
    fleet.down = False
    assert spoken.reporter.drain(PATIENCE)
    spoken.reporter.record(WORK)  # what did not fit into the first
    assert spoken.reporter.drain(PATIENCE)
    spoken.reporter.record(WORK)
    assert spoken.reporter.drain(PATIENCE)
    assert told == [list(range(MOST_SPANS)), list(range(MOST_SPANS, MOST_SPANS + 3)), []]


def test_training_is_one_span_for_each_of_its_phases():
    spans: list[PhaseSpan] = []
    phases = PlacementPhases(spans.append)
    phases.evaluated(9.0, 9)  # before training
    for warms_up, tokens in ((True, 10), (True, 20), (False, 5)):
        phases.stepped([False, warms_up], 0.5, tokens)
    phases.evaluated(2.0, 7)
    phases.training_over()
    phases.training_over()
    assert [(span.name, span.counts["steps"], span.counts["tokens"]) for span in spans] == [("warmup", 2, 30), ("train", 1, 5)]
    assert spans[1].counts["evaluation_seconds"] == 2.0
    assert "evaluations" not in spans[0].counts
    assert all(span.began < span.ended for span in spans)


def test_a_placement_that_is_not_traced_records_no_phase():
    phases = PlacementPhases(None)
    unread = iter([True])
    phases.stepped(unread, 0.5, 10)
    assert next(unread)
    phases.over("load", 1.0)
    phases.training_over()


def test_a_placement_records_few_phases():
    spans: list[PhaseSpan] = []
    phases = PlacementPhases(spans.append)
    for _ in range(MOST_PHASES + 5):
        phases.over("again", 1.0)
    assert len(spans) == MOST_PHASES


def test_the_phases_of_training_are_recorded_past_the_limit():
    spans: list[PhaseSpan] = []
    phases = PlacementPhases(spans.append)
    phases.stepped([False], 0.5, 10)
    for _ in range(MOST_PHASES):
        phases.over("upload", 1.0)
    phases.training_over()
    assert spans[-1].name == "train"
