"""HTTP transport: authentication, problem details as ApiError, retries of requests that are safe to repeat. Knows no
resources."""

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from motet.api.errors import ApiError, Unreachable

_PAUSES = (0.1, 0.3, 1.0, 2.0, 4.0)  # seconds before each retry of a read: a restarting API is back within their sum
_IN_HAND_SECONDS = 75.0  # the service drops a request whose process died after 60; until then its key is taken
_IN_HAND = "idempotency_in_flight"
_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_WAITING_ANSWERS = {502, 503, 504}
_HERE = {"127.0.0.1", "::1", "localhost"}  # proxies from the environment are for other hosts

Query = Mapping[str, Any]


class Transport:
    """One base address, one key, one connection pool."""

    def __init__(self, api_url: str, key: str) -> None:
        self.api_url = api_url
        headers = {"Authorization": f"Bearer {key}", "User-Agent": "motet-client"}
        proxied = _address(api_url).host not in _HERE
        self._http = httpx.Client(base_url=api_url, headers=headers, timeout=_TIMEOUT, trust_env=proxied)

    def close(self) -> None:
        self._http.close()

    def get(
        self, path: str, query: Query | None = None, headers: Mapping[str, str] | None = None, wait: float = 0
    ) -> httpx.Response:
        """A read, retried while the connection fails. `wait`: seconds the service may hold the request. 304 is an answer, not
        an error."""
        timeout = httpx.Timeout(30.0 + wait, connect=5.0)
        for pause in (*_PAUSES, None):
            try:
                answer = self._http.get(path, params=_given(query), headers=headers, timeout=timeout)
                if answer.status_code not in _WAITING_ANSWERS or pause is None:
                    return self._checked(answer)
            except httpx.TransportError as error:
                if pause is None:
                    raise self._unreachable(error) from error
            time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def post(self, path: str, json: Any = None) -> httpx.Response:
        """A change, sent once: when the answer is lost, the client cannot know whether the service applied it."""
        try:
            return self._checked(self._http.post(path, json=json))
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def make(self, path: str, json: Any = None, files: Any = None) -> httpx.Response:
        """A POST that creates something under its own Idempotency-Key: retried while the connection fails, and the service
        creates it once. Files must be seekable."""
        timeout = httpx.Timeout(None, connect=5.0) if files else _TIMEOUT  # no limit: the time depends on the file's size
        headers, until = {"Idempotency-Key": uuid.uuid4().hex}, time.monotonic() + _IN_HAND_SECONDS
        pauses = iter(_PAUSES)
        while True:
            pause = None
            try:
                answer = self._http.post(path, json=json, files=files, headers=headers, timeout=timeout)
                if answer.status_code in _WAITING_ANSWERS:
                    pause = next(pauses, None)
                elif answer.status_code == 409 and _problem(answer).get("code") == _IN_HAND and time.monotonic() < until:
                    pause = 1.0
                if pause is None:
                    return self._checked(answer)
            except httpx.TransportError as error:
                pause = next(pauses, None)
                if pause is None:
                    raise self._unreachable(error) from error
            time.sleep(pause)

    def delete(self, path: str) -> None:
        try:
            self._checked(self._http.delete(path))
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def pages(self, path: str, query: Query | None = None) -> Iterator[dict[str, Any]]:
        """Every entry of a paginated list."""
        for page in self.whole_pages(path, query):
            yield from page["data"]

    def whole_pages(self, path: str, query: Query | None = None) -> Iterator[dict[str, Any]]:
        """Each page as received."""
        cursor = None
        while True:
            page = self.get(path, {**(query or {}), "cursor": cursor}).json()
            yield page
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    @contextmanager
    def stream(self, path: str) -> Iterator[Iterator[bytes]]:
        """The chunks of a body too large for memory. A connection that breaks midway raises Unreachable."""
        try:
            with self._http.stream("GET", path) as answer:
                if not answer.is_success:
                    answer.read()
                self._checked(answer)
                yield answer.iter_bytes()
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _checked(self, answer: httpx.Response) -> httpx.Response:
        if answer.is_success or answer.status_code == 304:
            return answer
        raise ApiError(answer.status_code, _problem(answer))

    def _unreachable(self, error: httpx.TransportError) -> Unreachable:
        said = f"{self.api_url} does not answer ({str(error) or type(error).__name__})"
        return Unreachable(f"{said}; is it running? `motet up` starts a local one")


def _address(api_url: str) -> httpx.URL:
    try:
        url = httpx.URL(api_url)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host or "%" in url.host:
        raise Unreachable(f"{api_url!r} is not the address of an API; one looks like http://127.0.0.1:8321")
    return url


def _given(query: Query | None) -> dict[str, Any]:
    return {name: value for name, value in (query or {}).items() if value is not None}


def _problem(answer: httpx.Response) -> dict[str, Any]:
    """The problem body, or a substitute for an answer that is none, such as a proxy's error page."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    if isinstance(body, dict) and "detail" in body:
        return body
    return {"detail": f"{answer.request.url} answered {answer.status_code} {answer.reason_phrase}, and not in Motet's words"}
