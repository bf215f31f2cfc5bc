"""What a bucket answers is told as what it is: no room, a refusal that an operator has to mend, or trouble that may pass."""

import errno
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from service.storage.object_store import StorageAway, StorageRefused
from tests.http_server import HangUpServer, read_body
from tests.service.storage.test_contract import LARGE, SMALL


class _Answers(BaseHTTPRequestHandler):
    """Answers every request with the server's `status` and `said`."""

    def _answer(self) -> None:
        read_body(self)
        said = f"<Error><Code>{self.server.said}</Code></Error>".encode()  # type: ignore[attr-defined]
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def answering() -> Iterator[HangUpServer]:
    server = HangUpServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "in parts"])
@pytest.mark.parametrize(
    ("status", "said", "raised", "words"),
    [
        (507, "XMinioStorageFull", OSError, "has no room"),
        (403, "QuotaExceeded", OSError, "has no room"),
        (400, "KMS.NotFoundException", StorageRefused, "refuses what the service asks"),
        (400, "RequestTimeout", StorageAway, "does not answer in time"),
        (503, "SlowDown", StorageAway, "does not answer in time"),
        (404, "NoSuchUpload", StorageAway, "gave an upload up"),
    ],
)
def test_an_answer_is_told_as_what_it_is(storage_with, answering, data, status, said, raised, words):
    answering.status, answering.said = status, said
    where = {"storage_url": "s3://bucket/x", "storage_endpoint": f"http://127.0.0.1:{answering.server_port}"}
    bucket = storage_with(storage_dir=None, storage_region="us-east-1", storage_retries=0, **where)
    incoming = bucket.receive()

    def send() -> None:
        incoming.write(data)  # parts are sent beside the caller: what a bucket says of one may be told here already
        incoming.commit()

    with pytest.raises(raised, match=words) as told:
        send()
    assert (told.value.errno == errno.ENOSPC) == (words == "has no room")
    incoming.abandon()
