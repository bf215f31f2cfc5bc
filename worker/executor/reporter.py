"""Sends a placement's events to the service, in order and without gaps, from a thread of its own. Knows no jobs and no
training.

The thread resends an event until the service acknowledges it, through any outage that the lease outlasts. It gathers
loss points and throughput for _GATHER_SECONDS and merges the points; any other event is sent at once.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from contract.messages.report_messages import AdapterKept, Points, Report, ReportEvent, Series, TextsEvaluated, Throughput
from contract.messages.span_messages import MOST_SPANS, PhaseSpan
from worker.api_client import FenceStale, PlacementLink, Refused, SeqGap
from worker.executor.placement.placement_lease import Lease, LeaseNotHeld
from worker.executor.retry import persist

log = logging.getLogger(__name__)

_GATHER_SECONDS = 0.5
_MAX_EVENTS = 512  # of a report
_MAX_POINTS = 256  # of an event
_REMEMBERED = 64  # acknowledged reports that can be sent again


class Reporter:
    """Its thread calls `on_end(lost, detail)` when the placement has ended; `lost`: see PlacementEnded. Where the system starts
    no such thread, who makes it calls that."""

    def __init__(self, link: PlacementLink, lease: Lease, next_seq: int, on_end: Callable[[bool, str], None]) -> None:
        self._link, self._lease, self._seq, self._on_end = link, lease, next_seq, on_end
        self._changed = threading.Condition()
        self._events: deque[ReportEvent] = deque()
        self._spans: deque[PhaseSpan] = deque()
        self._urgent = False
        self._idle = True
        self._then: Callable[[], None] | None = None
        self._sent: deque[Report] = deque(maxlen=_REMEMBERED)
        try:
            threading.Thread(target=self._work, name=f"reports of {lease.placement_id}", daemon=True).start()
        except RuntimeError as error:
            on_end(True, f"the system starts no thread for its reports: {error}")

    def record(self, *events: ReportEvent) -> None:
        """Queue events, after all earlier ones."""
        if not events:
            return
        with self._changed:
            first = not self._events
            self._events.extend(events)
            self._idle = False
            if len(self._events) >= _MAX_EVENTS or not all(isinstance(event, Points | Throughput) for event in events):
                self._urgent = True
            if first or self._urgent:  # the first one starts the wait of _GATHER_SECONDS, also where it is a point
                self._changed.notify_all()

    def point(self, job: int, series: Series, step: int, value: float) -> None:
        """Record one point of a job's series, after `step`."""
        self.record(*points(job, series, [step], [value]))

    def trace(self, span: PhaseSpan) -> None:
        """Send the span along with one of the next reports."""
        with self._changed:
            self._spans.append(span)

    def drain(self, seconds: float) -> bool:
        """Wait until the service has acknowledged all events. Returns whether it has."""
        with self._changed:
            self._urgent = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._idle or self._lease.released, timeout=seconds) and self._idle

    def finish(self, then: Callable[[], None]) -> None:
        """Call `then`, from the reporter's thread, once the service has acknowledged all events."""
        with self._changed:
            self._then = then
            self._changed.notify_all()

    def close(self) -> None:
        """Stop sending, and release the lease."""
        self._lease.release()
        with self._changed:
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            while self._wait():
                if self._events:
                    self._send()
                if self._then is not None and self._idle:
                    self._then()
                    return
        except LeaseNotHeld as error:
            if not self._lease.released:
                self._on_end(True, str(error))
        except FenceStale as error:
            log.info("placement %s has ended: %s", self._lease.placement_id, error)
            self._on_end(False, "the service has ended it")
        except Refused as error:
            log.error("a report of placement %s was refused: %s", self._lease.placement_id, error)
            self._on_end(True, f"its report was refused: {error}")

    def _wait(self) -> bool:
        """Block until a report is due. False when the lease was released."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._then or self._lease.released)
            self._changed.wait_for(lambda: self._urgent or self._then or self._lease.released, timeout=_GATHER_SECONDS)
            self._urgent = False
            return not self._lease.released

    def _send(self) -> None:
        with self._changed:
            waiting, spans = list(self._events), list(self._spans)[:MOST_SPANS]
        events, used = events_of_report(waiting)
        report = Report(fence=self._lease.fence, seq=self._seq, events=events, spans=spans)
        self._send_until_acknowledged(report)
        with self._changed:
            for _ in range(used):
                self._events.popleft()
            for _ in spans:
                self._spans.popleft()
            self._urgent = self._urgent or used < len(waiting)
            self._idle = not self._events
            self._changed.notify_all()

    def _send_until_acknowledged(self, report: Report) -> None:
        """Send until acknowledged. If the service lost reports that it had acknowledged, resends those first."""
        while True:
            try:
                self._post(report)
            except SeqGap as gap:
                missing = [old for old in self._sent if old.seq >= gap.expected_seq]
                if gap.expected_seq >= report.seq or not missing or missing[0].seq != gap.expected_seq:
                    raise
                log.warning("the service expects report %d once more; saying again what came since", gap.expected_seq)
                for old in missing:
                    self._post(old)
            else:
                self._sent.append(report)
                self._seq = report.seq + 1
                return

    def _post(self, report: Report) -> None:
        lease = self._lease
        persist(lease, "a report", lambda: self._link.report(lease.placement_id, lease.token, report))


def points(job: int, series: Series, steps: Sequence[int], values: Sequence[float]) -> list[Points]:
    """The events of these points of a series, at these ascending steps: none where there is no point."""
    return [
        Points(job=job, series=series, steps=steps[first : first + _MAX_POINTS], values=values[first : first + _MAX_POINTS])
        for first in range(0, len(steps), _MAX_POINTS)
    ]


def events_of_report(waiting: Sequence[ReportEvent]) -> tuple[list[ReportEvent], int]:
    """The next report's events, and how many of `waiting` they cover. Merges points of a series unless another event about
    their job lies between; an event without a job separates all, except Throughput. A report's size is bounded, so it holds all
    texts of one evaluation at most. An adapter comes with its job's end: had a crash parted them, the service would delete an
    adapter that its tenant may have named."""
    events: list[ReportEvent] = []
    merged: list[list[Points]] = []  # of each event, those that are one with it; empty where it has no points
    counts: list[int] = []  # of their points
    open_: dict[tuple[int, str], int] = {}
    used, texts = 0, False
    for event in waiting:
        place = open_.get((event.job, event.series)) if isinstance(event, Points) else None
        if isinstance(event, Points) and place is not None and counts[place] + len(event.steps) <= _MAX_POINTS:
            merged[place].append(event)
            counts[place] += len(event.steps)
            used += 1
            continue
        with_texts = isinstance(event, TextsEvaluated) and bool(event.texts)
        if len(events) == _MAX_EVENTS or (texts and with_texts):
            if isinstance(waiting[used - 1], AdapterKept):
                events, merged, used = events[:-1], merged[:-1], used - 1
            break
        texts = texts or with_texts
        if isinstance(event, Points):
            open_[event.job, event.series] = len(events)
        elif not isinstance(event, Throughput):
            job = getattr(event, "job", None)
            open_ = {key: at for key, at in open_.items() if job is not None and key[0] != job}
        events.append(event)
        merged.append([event] if isinstance(event, Points) else [])
        counts.append(len(event.steps) if isinstance(event, Points) else 0)
        used += 1
    return [_one(parts) if len(parts) > 1 else event for event, parts in zip(events, merged, strict=True)], used


def _one(parts: Sequence[Points]) -> Points:
    """Points of one series as one event. A copy for each part took a thread beside the training loop a millisecond a step."""
    steps, values = [step for part in parts for step in part.steps], [value for part in parts for value in part.values]
    return parts[0].model_copy(update={"steps": steps, "values": values})
