"""The exporter: nothing waits for the collector, little is kept for it, and what is lost is counted."""

import json
import logging
import socket
import threading

import pytest

from service.tracing import span_exporter
from service.tracing.span_exporter import MOST_WAITING, SpanExporter
from service.tracing.spans import Span, SpanContext, new_trace
from tests.collector import collecting
from tests.service.live_server import PATIENCE, until


def spans(count, name="step"):
    return [Span(name, new_trace(), None, 1_700_000_000.25, 1_700_000_001.5) for _ in range(count)]


@pytest.fixture
def collector():
    with collecting() as made:
        yield made


@pytest.fixture
def retries(monkeypatch):
    """Tries follow each other at once."""
    monkeypatch.setattr(span_exporter, "_RETRIES", (0.01,))
    monkeypatch.setattr(span_exporter, "_GATHER_SECONDS", 0.01)


def told(caplog):
    """The levels of what exporters logged; others of this process may log too."""
    return [record.levelname for record in caplog.records if record.name == span_exporter.__name__]


class Exporting:
    def __init__(self, endpoint, **headers):
        self.lost = 0
        self.exporter = SpanExporter(endpoint, headers, "motet-test", self._dropped)

    def _dropped(self, count):
        self.lost += count


def test_a_span_arrives_as_it_was_recorded(collector):
    mine = Exporting(collector.endpoint + "/", Authorization="Bearer of-the-collector")
    parent = new_trace()
    said = {"text": "wörds", "count": 2**40, "part": 0.5, "yes": True}
    mine.exporter.put([Span("work", parent.child(), parent.span_id, 1_700_000_000.25, 1_700_000_001.5, said, error=True)])
    (span,) = collector.until(bool)
    assert (span.trace, span.parent, span.name, span.error) == (parent.trace_id, parent.span_id, "work", True)
    assert (span.began, span.ended) == (1_700_000_000.25, 1_700_000_001.5)
    assert span.attributes == said
    assert span.resource["service.name"] == "motet-test"
    assert collector.requests[0]["authorization"] == "Bearer of-the-collector"
    mine.exporter.close()


def test_what_waits_while_the_collector_is_away_comes_later_and_one_warning_says_so(collector, retries, caplog):
    caplog.set_level(logging.INFO, logger=span_exporter.__name__)
    collector.status = 503
    mine = Exporting(collector.endpoint)
    mine.exporter.put(spans(3))
    collector.asked(4)
    collector.status = 200
    collector.until(lambda found: len(found) == 3)
    until(lambda: len(told(caplog)) == 2)
    assert told(caplog) == ["WARNING", "INFO"]
    assert mine.lost == 0
    mine.exporter.close()


def test_a_full_queue_drops_counts_and_blocks_nobody(collector):
    collector.held.clear()
    mine = Exporting(collector.endpoint)
    putting = threading.Thread(target=lambda: [mine.exporter.put(spans(1)) for _ in range(MOST_WAITING + 7)])
    putting.start()
    putting.join(PATIENCE)
    assert not putting.is_alive()
    assert mine.lost == 7  # a batch under way is still in the queue
    collector.held.set()
    collector.until(lambda found: len({one.id for one in found}) >= MOST_WAITING)
    mine.exporter.close()


def test_what_the_collector_refuses_is_dropped_and_counted(collector, retries, caplog):
    collector.status = 400
    mine = Exporting(collector.endpoint)
    mine.exporter.put(spans(5))
    until(lambda: mine.lost == 5)
    said = {"partialSuccess": {"errorMessage": "too old; " * 5000, "rejectedSpans": "2"}}
    collector.status, collector.body = 200, json.dumps(said).encode()
    mine.exporter.put(spans(3))
    until(lambda: mine.lost == 7)
    assert told(caplog).count("WARNING") == 1
    mine.exporter.close()


def test_a_process_ends_though_the_collector_hangs(collector, monkeypatch):
    monkeypatch.setattr(span_exporter, "_CALL_SECONDS", 600.0)
    collector.held.clear()
    mine = Exporting(collector.endpoint)
    mine.exporter.put(spans(1))
    collector.asked(1)
    mine.exporter.close()
    assert mine.exporter._thread.is_alive(), "its call goes on"


def test_what_waits_is_sent_when_a_process_ends(collector):
    mine = Exporting(collector.endpoint)
    mine.exporter.put(spans(2))
    mine.exporter.close()
    assert len(collector.until(lambda found: len(found) == 2)) == 2


def test_nobody_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        mine = Exporting(f"http://127.0.0.1:{taken.getsockname()[1]}")
        mine.exporter.put(spans(1))
        mine.exporter.close()


@pytest.mark.parametrize(
    "said",
    [
        *("", "nonsense", f"00-{'0' * 32}-{'1' * 16}-01", f"00-{'1' * 32}-{'0' * 16}-01", f"ff-{'1' * 32}-{'1' * 16}-01"),
        *(f"00-{'1' * 32}-{'1' * 16}-01-more", f"00-{'A' * 32}-{'1' * 16}-01"),
    ],
)
def test_a_wrong_traceparent_is_ignored(said):
    assert SpanContext.read(said) is None


def test_a_traceparent_is_read_as_written():
    context = new_trace()
    assert SpanContext.read(context.traceparent) == context
    assert SpanContext.read(f"cc-{'1' * 32}-{'2' * 16}-00-more") == SpanContext("1" * 32, "2" * 16, False)
    assert context.of("task_1") == context.child().of("task_1") != context.of("task_2")
