"""Throttles failed authentication per client address, before it costs a database connection. Knows no keys and no tables.

A token bucket per address: an attempt takes a token and returns it on success, so that concurrent attempts are limited like
sequential ones; one that finds all tokens held by attempts in progress waits for them. Recently valid credentials bypass the
bucket, so that others behind the same address cannot lock their owners out. Each process counts separately.
"""

import asyncio
import hashlib
import ipaddress
import math
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from service.http.problems import Problem, Unauthorized

_MOST = 10_000  # remembered addresses, and as many valid credentials
_NETWORK_BITS = 64  # of an IPv6 address; a subscriber chooses the rest freely


class TooManyFailures(Problem):
    """The caller should wait for `Retry-After` seconds."""

    status, code, title = 429, "too_many_failures", "Too many requests with a wrong credential"


@dataclass
class Attempt:
    """One authentication attempt in progress."""

    failed: bool = False


@dataclass
class _Bucket:
    tokens: float
    at: float  # monotonic time of this count
    held: int = 0  # tokens of attempts in progress
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # at the end of the next of them


class AuthThrottle:
    """Allows `per_minute` failures per address. Only the event loop may begin an attempt; any thread may `trust`."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()  # by address, the last used at the end
        self._good: OrderedDict[bytes, None] = OrderedDict()  # hashes of credentials
        self._lock = threading.Lock()

    @asynccontextmanager
    async def attempt(self, address: str, credential: str) -> AsyncIterator[Attempt]:
        """Wrap a credential's lookup; it fails if the block sets `failed` or raises Unauthorized. Raises TooManyFailures."""
        hash = _hash(credential)
        while isinstance(charged := self._charge(address, hash), asyncio.Event):
            await charged.wait()
        attempt, over = Attempt(), False
        try:
            yield attempt
            over = True
        except Unauthorized:
            attempt.failed = True
            raise
        finally:
            self._settle(address, hash, charged, attempt.failed, good=over and not attempt.failed)

    def _charge(self, address: str, hash: bytes) -> bool | asyncio.Event:
        """Take a token, unless the credential was valid lately; returns whether one was taken, or, where attempts in progress
        hold them, what to wait for. Raises TooManyFailures."""
        with self._lock:
            if hash in self._good:
                return False
            bucket = self._bucket(address)
            if bucket.tokens < 1.0:
                if bucket.held:
                    return bucket.settled
                seconds = math.ceil((1.0 - bucket.tokens) * 60.0 / self._per_minute)
                message = f"Too many wrong credentials came from {address or 'this address'}; try again in {seconds} s."
                raise TooManyFailures(message, headers={"Retry-After": str(seconds)})
            bucket.tokens -= 1.0
            bucket.held += 1
            return True

    def _settle(self, address: str, hash: bytes, charged: bool, failed: bool, good: bool) -> None:
        with self._lock:
            if failed or charged:
                bucket = self._bucket(address)
                if failed != charged:
                    bucket.tokens = min(float(self._per_minute), max(0.0, bucket.tokens + (1.0 if charged else -1.0)))
                if charged:
                    bucket.held = max(0, bucket.held - 1)  # 0: the bucket was evicted meanwhile
                    _wake(bucket)
                if bucket.tokens == self._per_minute and not bucket.held:
                    del self._buckets[address]
            if failed:
                self._good.pop(hash, None)
            elif good:
                self._remember(hash)

    def trusts(self, credential: str) -> bool:
        """Whether the credential was valid lately."""
        with self._lock:
            return _hash(credential) in self._good

    def trust(self, credential: str) -> None:
        """Count a newly issued credential as valid."""
        with self._lock:
            self._remember(_hash(credential))

    def _remember(self, hash: bytes) -> None:
        self._good[hash] = None
        self._good.move_to_end(hash)
        if len(self._good) > _MOST:
            self._good.popitem(last=False)

    def _bucket(self, address: str) -> _Bucket:
        """The address's bucket, refilled up to now. Evicts the address used longest ago beyond _MOST."""
        now, most = time.monotonic(), float(self._per_minute)
        bucket = self._buckets.setdefault(address, _Bucket(most, now))
        bucket.tokens, bucket.at = min(most, bucket.tokens + (now - bucket.at) * most / 60.0), now
        self._buckets.move_to_end(address)
        if len(self._buckets) > _MOST:
            _wake(self._buckets.popitem(last=False)[1])
        return bucket


def _wake(bucket: _Bucket) -> None:
    """Let all who wait for a token look again."""
    bucket.settled.set()
    bucket.settled = asyncio.Event()


def _hash(credential: str) -> bytes:
    return hashlib.sha256(credential.encode(errors="surrogatepass")).digest()


def address_of(connection: HTTPConnection) -> str:
    """The client's address: the peer, or the one that a trusted proxy named. For IPv6 its /64 network, one subscriber's."""
    host = connection.client.host if connection.client is not None else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host[:64]
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False))
    return str(address)
