"""JSON logging: one object per line on standard error, with its request id, and with secrets redacted.

Modules log with the standard library; each key of `extra` becomes a member of the line. Knows no domain.
"""

import atexit
import contextlib
import json
import logging
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from logging.handlers import QueueHandler
from typing import Any

from structlog.contextvars import get_contextvars

_HIDDEN = "…"
_NAMES = re.compile(r"(?i)authorization|password|secret|credential|(^|_)token$|api_key")
# for each shape of secret: a cheap test (a tenth of the search's time) whether a text may hold it, its pattern, its replacement
_SHAPES: tuple[tuple[Callable[[str], bool], re.Pattern[str], str], ...] = (
    (  # keys, credentials, webhook secrets
        lambda text: "mk_" in text or "nc_" in text or "pt_" in text or "jt_" in text or "whsec_" in text,
        re.compile(r"\b(mk|nc|pt|jt|whsec)_[A-Za-z0-9_+/=-]{8,}"),
        rf"\1_{_HIDDEN}",
    ),
    (  # browser sessions, links that sign in or invite: whole ones, since "ms" is also a unit
        lambda text: "ms_" in text or "ml_" in text or "mi_" in text,
        re.compile(r"\b(ms|ml|mi)_[A-Za-z0-9_-]{43}"),
        rf"\1_{_HIDDEN}",
    ),
    (lambda text: " " in text, re.compile(r"(?i)\b(bearer|basic) [A-Za-z0-9._~+/=-]{8,}"), rf"\1 {_HIDDEN}"),
    (  # a password in a URL, which may hold a slash: 1 to 5 digits before one are a port
        lambda text: "://" in text and "@" in text,
        re.compile(r"(://[^/\s:@]*:)(?:(?!\d{1,5}/)\S{1,256}|[^/\s@]+)@"),
        rf"\1{_HIDDEN}@",
    ),
    (  # an upload grant
        lambda text: len(text) >= 64 and "." in text,
        re.compile(r"\b[0-9a-f]{64}\.\d+\.\d+\.[A-Za-z0-9_-]{20,}"),
        _HIDDEN,
    ),
)
_OF_RECORDS = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"}  # other attributes come from `extra`
_MOMENT_SECONDS = 0.05  # the writer thread batches lines for this long
_SHORTEST = 8  # characters; shorter secrets are not searched for by value
_LEAST = 6  # characters; shorter texts hold no secret of these shapes


@lru_cache(4096)
def _names_secret(name: str) -> bool:
    return _NAMES.search(name) is not None


class Redaction:
    """Redacts secrets in a line: by member name, by shape, and this process's own secrets by value."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = sorted({secret for secret in secrets if len(secret) >= _SHORTEST}, key=len, reverse=True)

    def __call__(self, line: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _HIDDEN if _names_secret(name) else self._clean(value) for name, value in line.items()}

    def text(self, text: str) -> str:
        if len(text) < _LEAST:
            return text
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        for may_hold, shape, instead in _SHAPES:
            if may_hold(text):
                text = shape.sub(instead, text)
        return text

    def _clean(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case dict():
                return {name: _HIDDEN if _names_secret(str(name)) else self._clean(one) for name, one in value.items()}
            case list() | tuple():
                return [self._clean(one) for one in value]
            case int() | float() | None:
                return value
        return self.text(str(value))


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON line. Every request writes one on the event loop, so it is minimal: structlog's own
    formatter takes three times as long."""

    def __init__(self, redact: Redaction) -> None:
        super().__init__()
        self._redact = redact
        self._encode = json.JSONEncoder(ensure_ascii=False).encode

    def format(self, record: logging.LogRecord) -> str:
        line = {"event": record.getMessage(), **get_contextvars()}
        line |= {name: value for name, value in record.__dict__.items() if name not in _OF_RECORDS}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        said = self._redact(line)
        said |= {"level": record.levelname.lower(), "logger": record.name}
        said["timestamp"] = datetime.fromtimestamp(record.created, UTC).isoformat()
        return self._encode(said)


def configure(secrets: Iterable[str] = ()) -> None:
    """Send all records of this process to standard error. `secrets`: values to redact anywhere in a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(Redaction(secrets)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)  # libraries' warnings become JSON lines too


def write_in_background() -> None:
    """Write log lines in a background thread, so that the event loop does not release the interpreter lock for each write.
    Pending lines are written at exit; a killed process loses at most the last batch (0.05 s)."""
    root = logging.getLogger()
    (written,) = root.handlers
    root.handlers[:] = [_BackgroundWriter(written)]


class _BackgroundWriter(QueueHandler):
    """Formats each line in the caller's thread; a writer thread writes them in batches."""

    def __init__(self, instead_of: logging.Handler) -> None:
        self._lines: deque[str] = deque()
        super().__init__(self._lines)  # type: ignore[arg-type]
        self.setFormatter(instead_of.formatter)
        self._some, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def prepare(self, record: logging.LogRecord) -> str:
        return self.format(record)

    def enqueue(self, record: Any) -> None:
        """Append the line that `prepare` formatted."""
        self._lines.append(record)
        if not self._some.is_set():  # otherwise the thread is already about to write
            self._some.set()

    def _run(self) -> None:
        while not self._over.is_set():
            self._some.wait()
            self._over.wait(_MOMENT_SECONDS)
            self._some.clear()
            self._write()

    def _write(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        with contextlib.suppress(OSError):  # a closed pipe or a full disk must not end the process
            sys.stderr.write("".join(f"{line}\n" for line in lines))
            sys.stderr.flush()

    def flush(self) -> None:
        """Write pending lines now, in the caller's thread."""
        self._write()

    def _stop(self) -> None:
        self._over.set()
        self._some.set()
        self._thread.join()
        self._write()
