"""JSON calls to a tracking server through the SSRF guard, timed and bounded. Knows no server's API.

A tenant's server may answer anything. No redirect is followed, since credentials go to the server that the tenant named.
"""

import base64
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode

from service.http.outbound import Failed, Fetched, Outbound, Refused
from service.mirrors.tracker import CallFailed

AGAIN = (401, 403, 404, 408, 425, 429)  # besides 5xx: what a tenant or an operator of the server can mend
_MOST_ANSWER = 4 * 2**20  # bytes
_LONGEST_WAIT = timedelta(hours=1)  # that a server may ask for
_OWN = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "motet-mirrors/1"}


@dataclass(frozen=True)
class Answered:
    """said: the JSON object, None where the answer is none. wait: what a Retry-After asks for, at most an hour."""

    status: int
    said: Mapping[str, Any] | None
    wait: timedelta | None

    @property
    def moved(self) -> str:
        """For the message about a redirect."""
        return ", and redirects are not followed" if 300 <= self.status < 400 else ""


def basic(username: str, password: str) -> dict[str, str]:
    """The header of basic authentication."""
    return {"Authorization": f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"}


class TrackerCalls:
    """Calls below one URL, whose name and paths the messages leave to `call`. Both methods raise CallFailed."""

    def __init__(self, outbound: Outbound, url: str, authorization: Mapping[str, str]) -> None:
        self._outbound, self._url, self._headers = outbound, url.rstrip("/"), _OWN | dict(authorization)
        self.slowest = 0.0  # seconds of a call

    def get(self, path: str, call: str, **query: str) -> Answered:
        url = f"{self._url}{path}?{urlencode(query)}"
        return self._answer(call, lambda: self._outbound.get(url, self._headers, _MOST_ANSWER + 1, redirects=0))

    def post(self, path: str, call: str, body: Mapping[str, Any]) -> Answered:
        sent = json.dumps(body).encode()
        return self._answer(call, lambda: self._outbound.post(self._url + path, sent, self._headers, _MOST_ANSWER + 1))

    def _answer(self, call: str, ask: Callable[[], Fetched]) -> Answered:
        began = time.monotonic()
        try:
            answer = ask()
        except Refused as refused:
            raise CallFailed(f"the server's URL {refused}") from None
        except Failed as failed:
            raise CallFailed(f"{call}: {failed}") from None
        finally:
            self.slowest = max(self.slowest, time.monotonic() - began)
        if len(answer.body) > _MOST_ANSWER:
            raise CallFailed(f"{call} answered more than {_MOST_ANSWER} bytes")
        return Answered(answer.status, _read(answer.body), _wait(answer.headers.get("retry-after", "")))


def _read(body: bytes) -> dict[str, Any] | None:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _wait(said: str) -> timedelta | None:
    """Of a Retry-After in either of its forms (RFC 9110, 10.2.3)."""
    if re.fullmatch(r"[0-9]{1,9}", said):
        return min(timedelta(seconds=int(said)), _LONGEST_WAIT)
    try:
        until = parsedate_to_datetime(said)
    except (ValueError, OverflowError, TypeError, IndexError):  # of numbers beyond those of dates; of Python 3.11's parser
        return None
    left = until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)
    return min(max(left, timedelta(0)), _LONGEST_WAIT)
