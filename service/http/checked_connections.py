"""Connections to addresses that were checked before, within one deadline. Knows no names and no URLs."""

import ssl
import time
from collections.abc import Iterable, Sequence
from typing import Any

import httpcore

from service.http.public_addresses import IPAddress


class CheckedConnections(httpcore.NetworkBackend):
    """Connects only to the checked addresses, without resolving the name again (DNS rebinding), and not after `until`."""

    def __init__(self, addresses: Sequence[IPAddress], until: float) -> None:
        self._addresses, self._until, self._plain = addresses, until, httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        last: Exception = httpcore.ConnectError("no address")
        for address in self._addresses:
            try:
                stream = self._plain.connect_tcp(str(address), port, _left(self._until), None, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                last = error
            else:
                return _Timed(stream, self._until)
        raise last


class _Timed(httpcore.NetworkStream):
    """A stream with one deadline, `until`, for all reads and writes, so a slow receiver cannot extend the call."""

    def __init__(self, stream: httpcore.NetworkStream, until: float) -> None:
        self._stream, self._until = stream, until

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _sooner(timeout, self._until))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send piece by piece here: the stream's own write gives each piece that the receiver takes the whole timeout anew."""
        to, left = self._stream.get_extra_info("socket"), memoryview(buffer)
        try:
            while left:
                to.settimeout(_sooner(timeout, self._until))
                left = left[to.send(left) :]
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error)) from None
        except OSError as error:
            raise httpcore.WriteError(str(error)) from None

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Timed(self._stream.start_tls(ssl_context, server_hostname, _left(self._until)), self._until)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _sooner(timeout: float | None, until: float) -> float:
    left = _left(until)
    return left if timeout is None else min(timeout, left)


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the whole call took too long")
    return left
