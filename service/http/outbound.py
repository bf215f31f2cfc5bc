"""SSRF guard: outbound HTTP that cannot reach our own network. Knows no webhooks, no hub and no database.

It resolves a name once, checks every address, and connects to a checked address.
"""

import functools
import ipaddress
import queue
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import SplitResult, urljoin, urlsplit

import httpcore

from service.http.checked_connections import CheckedConnections
from service.http.public_addresses import IPAddress, is_public

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_URL = 2048
_MAX_REDIRECT = 8192  # characters; a bucket's presigned URLs are long
_REDIRECTS = 5
_KEPT_BYTES = 1024  # of an answer's body
_RESOLVE_SECONDS = 5.0  # the resolver's own limit depends on the machine's settings, and may be minutes
# threads that wait for a resolver, hung ones included: for tenants' names, and for operators', which no tenant's may hold up
_RESOLVING, _RESOLVING_TRUSTED = threading.BoundedSemaphore(32), threading.BoundedSemaphore(32)
_ADDRESS = re.compile(r"[0-9.]+|.*:.*")  # of a host: IPv4 in any of its forms, IPv6


class Refused(ValueError):
    """The URL may not be called. The message is for the tenant and reveals nothing about our network."""


class NotPublic(Refused):
    """The host's address is not public, and no allowed network holds it."""


class Failed(Exception):
    """The receiver could not be reached or did not answer in time. A retry may succeed."""


@dataclass(frozen=True)
class StreamedResponse:
    """An answer whose body has yet to come: `blocks` raises Failed where it breaks off. Otherwise as Fetched."""

    url: str
    status: int
    headers: Mapping[str, str]
    blocks: Iterable[bytes]


@dataclass(frozen=True)
class Fetched:
    """What was got: header names are in lower case, `url` is where the redirects led."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes


class Outbound:
    """Calls a URL, within `seconds`, its name's resolution included. `allowed`: networks it may reach though not public."""

    def __init__(self, allowed: Sequence[IPNetwork] = (), seconds: float = 15.0) -> None:
        self._allowed, self._seconds = tuple(allowed), seconds
        self._tls = _system_tls()

    def check(self, url: str) -> None:
        """Check a URL when a tenant registers it. Raises Refused. An unresolvable name passes: it may resolve later."""
        parts = parse_url(url)
        try:
            addresses = _resolve(parts.hostname or "", _port(parts), _RESOLVING)
        except Failed:
            self.check_unresolved(url)  # `post` resolves the name again
        else:
            self._judge(parts.scheme, addresses)

    def check_unresolved(self, url: str) -> None:
        """As `check` of what the URL says alone: asks no resolver, so it may be called within a transaction. Raises Refused."""
        parts = parse_url(url)
        if _ADDRESS.fullmatch(parts.hostname or "") is not None:
            self._judge(parts.scheme, _addresses(parts.hostname or ""))
        elif parts.scheme != "https" and not self._allowed:  # a name: `post` judges its addresses
            raise _plain()

    def post(self, url: str, body: bytes, headers: Mapping[str, str], most: int = _KEPT_BYTES, trusted: str = "") -> Fetched:
        """POST; the answer of any status, `most` bytes of it. `trusted` as in `stream`. Raises Refused or Failed."""
        parse_url(url)
        return self.send("POST", url, body, headers, most, trusted)

    def send(
        self,
        method: Literal["POST", "PUT"],
        url: str,
        body: bytes | Iterator[bytes],
        headers: Mapping[str, str],
        most: int,
        trusted: str = "",
        until: float | None = None,
    ) -> Fetched:
        """One request with a body; a redirect is the answer. `body`: whole, or in blocks of the Content-Length that `headers`
        name. Otherwise as `get`. Raises Refused, Failed, and what `body` raises."""
        parts, until = parse_url(url, _MAX_REDIRECT), time.monotonic() + self._seconds if until is None else until
        with self._call(method, parts, headers, until, body, judged=origin(url) != origin(trusted)) as response:
            return Fetched(url, response.status, _headers(response), _first(response.iter_stream(), most))

    def get(
        self,
        url: str,
        headers: Mapping[str, str],
        most: int,
        trusted: str = "",
        until: float | None = None,
        redirects: int = _REDIRECTS,
    ) -> Fetched:
        """As `stream`, with at most `most` bytes of the body."""
        with self.stream(url, headers, trusted, until, redirects) as got:
            return Fetched(got.url, got.status, got.headers, _first(got.blocks, most))

    @contextmanager
    def stream(
        self,
        url: str,
        headers: Mapping[str, str],
        trusted: str = "",
        until: float | None = None,
        redirects: int = _REDIRECTS,
    ) -> Iterator[StreamedResponse]:
        """GET, and follow at most so many redirects, each of which is checked; with 0, a redirect is the answer. The body comes
        block by block, as it was sent.

        trusted: an origin that the operator named, whatever its address. until: of time.monotonic, instead of `seconds` from
        now; a receiver may be silent for `seconds`. `Authorization` goes to the first origin alone. Raises Refused or Failed.
        """
        until, sent = time.monotonic() + self._seconds if until is None else until, dict(headers)
        for _ in range(redirects + 1):
            parts = parse_url(url, _MAX_REDIRECT)
            with self._call("GET", parts, sent, until, judged=origin(url) != origin(trusted)) as response:
                said = _headers(response)
                if not (redirects and response.status in (301, 302, 303, 307, 308) and "location" in said):
                    yield StreamedResponse(url, response.status, said, response.iter_stream())
                    return
            with _parsing():
                onward = urljoin(url, said["location"])
            if origin(onward) != origin(url):
                sent = {name: value for name, value in sent.items() if name.lower() != "authorization"}
            url = onward
        raise Failed(f"more than {redirects} redirects")

    @contextmanager
    def _call(
        self,
        method: str,
        parts: SplitResult,
        headers: Mapping[str, str],
        until: float,
        body: bytes | Iterator[bytes] | None = None,
        judged: bool = True,
    ) -> Iterator[httpcore.Response]:
        """The response of one request to checked addresses. `judged`: refuse those that are not public."""
        addresses = _resolve(parts.hostname or "", _port(parts), _RESOLVING if judged else _RESOLVING_TRUSTED)
        if judged:
            self._judge(parts.scheme, addresses)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        where = httpcore.URL(scheme=parts.scheme, host=(parts.hostname or "").encode("ascii"), port=parts.port, target=target)
        sent = [("Host", _host_header(parts)), ("Connection", "close"), *headers.items()]
        backend = CheckedConnections(addresses, until)
        timeout = dict.fromkeys(("connect", "read", "write", "pool"), self._seconds)
        try:
            with (
                httpcore.ConnectionPool(ssl_context=self._tls, network_backend=backend, max_connections=1) as pool,
                pool.stream(method, where, headers=sent, content=body, extensions={"timeout": timeout}) as response,
            ):
                yield response
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            raise Failed(f"{type(error).__name__}: {error}".rstrip(": ")) from None

    def _judge(self, scheme: str, addresses: Sequence[IPAddress]) -> None:
        for address in addresses:
            if any(address in network for network in self._allowed):
                continue
            if not is_public(address):
                raise NotPublic("its host has an address that is not public; public addresses alone are called")
            if scheme != "https":
                raise _plain()


@functools.cache
def _system_tls() -> ssl.SSLContext:
    """One for the process: to read the system's certificates takes 25 ms of CPU time."""
    return ssl.create_default_context()


def _plain() -> Refused:
    return Refused("must start with https://, so that nobody on the way reads or changes what is sent")


@contextmanager
def _parsing() -> Iterator[None]:
    try:
        yield
    except ValueError:  # its text would tell a part of a password, read as the port or the host
        raise Refused("is not a URL: its host or port cannot be read; write https://host:port/path") from None


def parse_url(url: str, most: int = MAX_URL) -> SplitResult:
    """Parse the URL. Raises Refused unless it is a plain http(s) URL of at most `most` characters."""
    if len(url) > most:
        raise Refused(f"has {len(url)} characters, the limit is {most}")
    if any(not "!" <= letter <= "~" for letter in url):
        raise Refused("may hold printable ASCII alone; write other letters percent-encoded, and a host in punycode")
    with _parsing():
        parts = urlsplit(url)
        port = parts.port
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise Refused("must be of the form https://host/path")
    if "@" in parts.netloc:
        raise Refused("may not hold a user name or password")
    if parts.fragment:
        raise Refused("may not end in a #fragment, which is never sent")
    return parts


def origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port, as the URL has them. Raises Refused."""
    with _parsing():
        parts = urlsplit(url)
        return parts.scheme, parts.hostname or "", parts.port


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _host_header(parts: SplitResult) -> str:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return host if parts.port is None else f"{host}:{parts.port}"


def _resolve(host: str, port: int, threads: threading.BoundedSemaphore) -> list[IPAddress]:
    """Every address of the name, as the resolver orders them. Raises Failed: none, none in _RESOLVE_SECONDS, no thread left."""
    answer: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answer.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answer.put(error)
        finally:
            threads.release()

    if not threads.acquire(blocking=False):
        raise Failed(f"{host} cannot be resolved: the resolver does not answer for other names")
    try:
        threading.Thread(target=ask, name="resolver", daemon=True).start()  # getaddrinfo takes no timeout
    except RuntimeError as error:  # no more threads, or the process ends
        threads.release()
        raise Failed(f"{host} cannot be resolved: {error}") from None
    try:
        found = answer.get(timeout=_RESOLVE_SECONDS)
    except queue.Empty:
        raise Failed(f"{host} cannot be resolved: no answer within {_RESOLVE_SECONDS:g} s") from None
    if isinstance(found, Exception):
        raise Failed(f"{host} cannot be resolved: {found}")
    return _unique(found)


def _addresses(host: str) -> list[IPAddress]:
    """Those that the host itself is written as; no resolver is asked. Raises Refused where it is none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        raise Refused(f"has the host {host}, which is written as an IP address and is none") from None
    return _unique(found)


def _unique(found: Iterable[Any]) -> list[IPAddress]:
    return list(dict.fromkeys(ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found))


def _headers(response: httpcore.Response) -> dict[str, str]:
    return {name.decode().lower(): value.decode("latin-1") for name, value in response.headers}


def _first(blocks: Iterable[bytes], most: int) -> bytes:
    kept = bytearray()
    for block in blocks:
        kept += block
        if len(kept) >= most:
            break
    return bytes(kept[:most])
