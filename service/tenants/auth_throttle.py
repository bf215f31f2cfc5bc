"""Throttles failed authentication per client address, before it costs a database connection. Knows no keys and no tables.

A token bucket per address: an attempt takes a token and returns it on success, so that concurrent attempts are limited like
sequential ones. Recently valid credentials bypass the bucket, so that others behind the same address cannot lock their owners
out. Each process counts separately.
"""

import hashlib
import ipaddress
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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


class AuthThrottle:
    """Allows `per_minute` failures per address. Any thread may use it."""

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()  # by address, the last used at the end
        self._good: OrderedDict[bytes, None] = OrderedDict()  # hashes of credentials
        self._lock = threading.Lock()

    @contextmanager
    def attempt(self, address: str, credential: str) -> Iterator[Attempt]:
        """Wrap a credential's lookup; it fails if the block sets `failed` or raises Unauthorized. Raises TooManyFailures."""
        hash = _hash(credential)
        charged, attempt, over = self._charge(address, hash), Attempt(), False
        try:
            yield attempt
            over = True
        except Unauthorized:
            attempt.failed = True
            raise
        finally:
            self._settle(address, hash, charged, attempt.failed, good=over and not attempt.failed)

    def _charge(self, address: str, hash: bytes) -> bool:
        """Take a token, unless the credential was valid lately; returns whether one was taken. Raises TooManyFailures."""
        with self._lock:
            if hash in self._good:
                return False
            bucket = self._bucket(address)
            if bucket.tokens < 1.0:
                seconds = math.ceil((1.0 - bucket.tokens) * 60.0 / self.per_minute)
                message = f"Too many wrong credentials came from {address or 'this address'}; try again in {seconds} s."
                raise TooManyFailures(message, headers={"Retry-After": str(seconds)})
            bucket.tokens -= 1.0
            return True

    def _settle(self, address: str, hash: bytes, charged: bool, failed: bool, good: bool) -> None:
        with self._lock:
            if failed != charged:
                bucket = self._bucket(address)
                bucket.tokens = min(float(self.per_minute), max(0.0, bucket.tokens + (1.0 if charged else -1.0)))
                if bucket.tokens == self.per_minute:
                    del self._buckets[address]
            if failed:
                self._good.pop(hash, None)
            elif good:
                self._remember(hash)

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
        now, most = time.monotonic(), float(self.per_minute)
        bucket = self._buckets.setdefault(address, _Bucket(most, now))
        bucket.tokens, bucket.at = min(most, bucket.tokens + (now - bucket.at) * most / 60.0), now
        self._buckets.move_to_end(address)
        if len(self._buckets) > _MOST:
            self._buckets.popitem(last=False)
        return bucket


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
