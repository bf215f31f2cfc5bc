"""A machine that is about to be taken away: how the notice is read, and that the worker gives back what runs and stays away."""

import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from contract.messages.report_messages import Checkpointed
from tests.http_server import HangUpServer
from tests.worker.processes import gone
from tests.worker.running_node import LONG, PATIENCE, SPACE, await_touch, fleet_with_placements, refused, running, trains
from worker.node.preemption_notice import CLOUDS, PreemptionNotice, Unclear, UrlSource, source_of


class Metadata:
    """A cloud's metadata service on loopback: AWS' wants a token of its own, GCP's a header."""

    def __init__(self) -> None:
        self.answer, self.asked = (404, ""), threading.Semaphore(0)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self._say(*((200, "a token") if "X-aws-ec2-metadata-token-ttl-seconds" in self.headers else (400, "")))

            def do_GET(self) -> None:
                outer.asked.release()
                allowed = self.headers.get("X-aws-ec2-metadata-token") == "a token" or "Metadata-Flavor" in self.headers
                self._say(*(outer.answer if allowed or self.path == "/open" else (401, "")))

            def _say(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None: ...

        self._server = HangUpServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    monkeypatch.setattr("worker.node.preemption_notice._TIMEOUT", 60.0)
    made = Metadata()
    yield made
    made.close()


SOURCES: dict[str, Callable[[str], UrlSource]] = {
    "aws": lambda url: replace(CLOUDS["aws"], url=f"{url}/action", token_url=f"{url}/token"),
    "gcp": lambda url: replace(CLOUDS["gcp"], url=f"{url}/preempted"),
    "a URL": lambda url: UrlSource(f"{url}/open"),
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize(
    ("answer", "given"),
    [
        ((404, "not found"), False),
        ((200, "FALSE"), False),
        ((200, ""), False),
        ((200, "TRUE\n"), True),
        ((200, '{"action": "terminate", "time": "2026-09-18T08:22:00Z"}'), True),
    ],
)
def test_what_a_cloud_answers(metadata: Metadata, kind: str, answer: tuple[int, str], given: bool) -> None:
    metadata.answer = answer
    assert SOURCES[kind](metadata.url).given() is given


def test_an_answer_that_says_neither_is_no_notice(metadata: Metadata) -> None:
    metadata.answer = (500, "TRUE")
    for source in (
        UrlSource(f"{metadata.url}/open"),
        UrlSource(f"{metadata.url}/needs-a-token"),
        UrlSource("http://127.0.0.1:1"),
    ):
        with pytest.raises(Unclear, match=r"127\.0\.0\.1"):
            source.given()
    for url in (metadata.url.replace("//", "//user:sEcReT@"), "http://user:sEcReT@127.0.0.1:1"):
        with pytest.raises(Unclear, match=r"//…@127\.0\.0\.1") as told:
            UrlSource(f"{url}/open?token=sEcReT").given()
        assert "sEcReT" not in str(told.value)
    assert UrlSource(CLOUDS["aws"].url) != CLOUDS["aws"], "without its token AWS answers 401"


def test_a_source_that_cannot_be_asked_is_unclear_and_ends_no_worker(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for named in ("http://127.0.0.1:99999/", "http://[", f"file:///{'x' * 5000}"):
        with pytest.raises(Unclear):
            source_of(named).given()
    assert not source_of(f"file://{tmp_path}/file/notice").given()


def test_a_watch_goes_on_after_what_is_unclear_and_calls_once(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("worker.node.preemption_notice._SECONDS", 0.01)
    metadata.answer, called = (500, ""), threading.Semaphore(0)
    notice = PreemptionNotice(f"{metadata.url}/open", called.release)
    for _ in range(5):
        assert metadata.asked.acquire(timeout=PATIENCE)
    assert not notice.given
    metadata.answer = (200, "TRUE")
    assert called.acquire(timeout=PATIENCE)
    assert notice.given
    assert caplog.text.count("is not known") == 1, "said once, however often it is looked for"
    assert not called.acquire(blocking=False)


def test_no_setting_means_no_watch_and_a_file_is_a_source(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    assert not PreemptionNotice(None, lambda: None).given
    assert "preemption notice" not in {thread.name for thread in set(threading.enumerate()) - before}
    source = source_of(f"file://{tmp_path}/notice")
    assert not source.given()
    (tmp_path / "notice").touch()
    assert source.given()


def test_a_preempted_worker_stores_its_jobs_gives_them_back_and_asks_for_nothing(tiny_base, tmp_path):
    notice, alive = tmp_path / "notice", tmp_path / "alive"
    own = {"MOTET_PREEMPTION_NOTICE": f"file://{notice}", "MOTET_LIVENESS_FILE": str(alive)}
    with fleet_with_placements(tiny_base, tmp_path) as (fleet, placing), running(fleet, tmp_path, **own) as node:
        reported = fleet.place(placing(SPACE, **LONG))
        fleet.until(trains(reported))
        family = node.family()
        notice.touch()
        fleet.until(lambda: len(fleet.lost) == 2)
        begun, lost = fleet.lost
        assert (begun.stopping, begun.fences, lost.stopping, len(lost.fences)) == (True, {}, True, 1)
        assert "about to be taken away" in lost.detail
        (checkpointed,) = reported.of(Checkpointed)
        assert checkpointed.jobs[0].step == reported.step[0]
        registered = len(fleet.registrations)
        assert all(gone(pid) for pid in family[1:])
        await_touch(alive)  # it lives on: started again it would be given more
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(timeout=PATIENCE) == 0
        assert len(fleet.registrations) == registered


def test_a_source_of_no_known_form_is_refused_in_words(tiny_base, tmp_path):
    with (
        fleet_with_placements(tiny_base, tmp_path) as (fleet, _),
        refused(fleet, tmp_path, MOTET_PREEMPTION_NOTICE="azure") as (code, said),
    ):
        assert code == 2
        assert "MOTET_PREEMPTION_NOTICE: must be aws, gcp, file:///path, or a URL" in said
