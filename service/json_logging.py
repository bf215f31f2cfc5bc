"""Log lines: one JSON object each on standard error, with the request they belong to, and without a secret in them.

Rooms log with the standard library; what they give as `extra` becomes a member of the line. Knows no rooms.
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
# whether a text may hold a secret of this shape, found out in a tenth of the time that looking for it takes; the shape; and
# what stands there instead
_SHAPES: tuple[tuple[Callable[[str], bool], re.Pattern[str], str], ...] = (
    (  # keys, credentials, webhook secrets
        lambda text: "mk_" in text or "nc_" in text or "pt_" in text or "jt_" in text or "whsec_" in text,
        re.compile(r"\b(mk|nc|pt|jt|whsec)_[A-Za-z0-9_+/=-]{8,}"),
        rf"\1_{_HIDDEN}",
    ),
    (lambda text: " " in text, re.compile(r"(?i)\b(bearer|basic) [A-Za-z0-9._~+/=-]{8,}"), rf"\1 {_HIDDEN}"),
    (lambda text: "://" in text, re.compile(r"(://[^/\s:@]*:)[^/\s@]+@"), rf"\1{_HIDDEN}@"),  # a password in a URL
    (  # an upload grant
        lambda text: len(text) >= 64 and "." in text,
        re.compile(r"\b[0-9a-f]{64}\.\d+\.\d+\.[A-Za-z0-9_-]{20,}"),
        _HIDDEN,
    ),
)
_OF_RECORDS = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"}  # the rest was given as `extra`
_MOMENT_SECONDS = 0.05  # in which lines are gathered
_SHORTEST = 8  # characters of a secret that is looked for by its value
_LEAST = 6  # characters of what may hold anything of these


@lru_cache(4096)
def _names_secret(name: str) -> bool:
    return _NAMES.search(name) is not None


class Redaction:
    """Takes secrets out of a line: by the name of a member, by their shape, and those of this process by their value."""

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
    """A record as a line. Every request writes one, so it does nothing but that: structlog's own formatter takes thrice as
    long, and an event loop's every turn with it."""

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
    """Send all records of this process to standard error. `secrets`: values that no line may show, wherever they turn up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(Redaction(secrets)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)  # libraries' too are lines, not loose text


def write_aside() -> None:
    """From now on a thread writes the lines, so that an event loop does not lose its turn to other threads with each of them.
    What was said is written before the process ends, but for the last moment of one that is killed."""
    root = logging.getLogger()
    (written,) = root.handlers
    root.handlers[:] = [_Aside(written)]


class _Aside(QueueHandler):
    """Formats each line at once, and has a thread write those of a moment in one go."""

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
        """A line, since that is what is prepared of a record."""
        self._lines.append(record)
        if not self._some.is_set():  # or the thread is about to look
            self._some.set()

    def _run(self) -> None:
        while not self._over.is_set():
            self._some.wait()
            self._over.wait(_MOMENT_SECONDS)
            self._some.clear()
            self._write()

    def _write(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        with contextlib.suppress(OSError):  # nobody reads them any more, or there is no room: it is no reason to stop
            sys.stderr.write("".join(f"{line}\n" for line in lines))
            sys.stderr.flush()

    def flush(self) -> None:
        """Write what waits now, in the caller's thread."""
        self._write()

    def _stop(self) -> None:
        self._over.set()
        self._some.set()
        self._thread.join()
        self._write()
