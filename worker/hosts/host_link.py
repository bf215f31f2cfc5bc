"""A connection between the first host of a node and the agent of a further one: TCP, each end proves that it has the secret.

Both ends prove it by HMAC-SHA256 over two fresh nonces, and every message of the link carries a code over its bytes, its place
in the order, and its direction. What follows once a process has the connection carries none, nor is anything encrypted: hosts
of a node are to be on a private network, as for gloo and NCCL, which ask for no secret at all.
"""

import fcntl
import hashlib
import hmac
import secrets
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import TypeVar

from pydantic import SecretStr, TypeAdapter, ValidationError

from contract.strict import Message

T = TypeVar("T")

_MAGIC = b"motet host 1\n"
_NONCE = _MAC = 32  # bytes
_LENGTH = struct.Struct("!I")
_MOST = 2**16  # bytes of a message
_SECONDS = 10.0  # for a connection, and for all that the other end has to say at first
_LEAST_SECONDS = 0.001
_IDLE, _EVERY, _PROBES = 10, 5, 3  # keepalive: seconds before the first probe, between probes; probes until the end
_SIOCGIFADDR = 0x8915


class HostUnreachable(ConnectionError):
    """There is no answer, or the connection has ended."""


class HostRefused(ValueError):
    """The other end is not what it should be, or does not take the request. The message can be shown to an operator."""


class HostLink:
    """One thread at a time. Messages go both ways until a process takes over the socket. The first one from the other end comes
    before `deadline` (of time.monotonic), however slowly it is sent."""

    def __init__(
        self, end: socket.socket, name: str, key: bytes, sends: bytes, receives: bytes, deadline: float | None
    ) -> None:
        self.socket, self.name, self._deadline = end, name, deadline
        self._key, self._sends, self._receives = key, sends, receives
        self._sent = self._received = 0

    def send(self, message: Message) -> None:
        """Raises HostUnreachable."""
        body = message.model_dump_json().encode()
        code = self._code(self._sends, self._sent, body)
        self._sent += 1
        try:
            self.socket.sendall(_LENGTH.pack(len(body)) + body + code)
        except OSError as error:
            raise HostUnreachable(f"{self.name}: {error}") from None

    def receive(self, messages: TypeAdapter[T]) -> T:
        """Raises HostUnreachable at the end of the connection, and HostRefused for a message that is not the other end's."""
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if size > _MOST:
            raise HostRefused(f"{self.name} sent a message of {size} bytes")
        body, code = self._exactly(size), self._exactly(_MAC)
        if not hmac.compare_digest(code, self._code(self._receives, self._received, body)):
            raise HostRefused(f"{self.name} has another MOTET_WORKER_HOSTS_SECRET, or somebody changed its message")
        self._received += 1
        try:
            return messages.validate_json(body)
        except ValidationError as error:
            raise HostRefused(f"{self.name} sent what this version does not read: {error.errors()[0]['msg']}") from None

    def set_timeout(self, seconds: float | None) -> None:
        """From now on each wait for the other end may take so long; None: any time."""
        self._deadline = None
        self.socket.settimeout(seconds)

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        return receive_exactly(self.socket, size, self.name, self._deadline)

    def _code(self, direction: bytes, number: int, body: bytes) -> bytes:
        return _mac(self._key, direction, number.to_bytes(8), body)


def connect(address: str, secret: SecretStr) -> HostLink:
    """To the agent at `host:port`. Raises HostUnreachable, and HostRefused where it does not know the secret."""
    host, port = parts_of(address)
    deadline = time.monotonic() + _SECONDS
    try:
        end = socket.create_connection((host, port), timeout=_SECONDS)
    except OSError as error:
        raise HostUnreachable(f"{address}: {error}") from None
    try:
        _keep_alive(end)
        mine = secrets.token_bytes(_NONCE)
        _sent(end, _MAGIC + mine, address)
        theirs, proof = (receive_exactly(end, size, address, deadline) for size in (_NONCE, _MAC))
        if not hmac.compare_digest(proof, _mac(_key(secret), b"agent", mine, theirs)):
            raise HostRefused(f"{address} has another MOTET_WORKER_HOSTS_SECRET, or is no agent of Motet")
        return HostLink(end, address, _mac(_key(secret), b"session", mine, theirs), b"first", b"agent", deadline)
    except BaseException:
        end.close()
        raise


def accepted(end: socket.socket, name: str, secret: SecretStr) -> HostLink:
    """The agent's end of a new connection, whose first message shows that the other end has the secret. Raises HostUnreachable
    and HostRefused."""
    deadline = time.monotonic() + _SECONDS
    end.settimeout(_SECONDS)
    _keep_alive(end)
    if receive_exactly(end, len(_MAGIC), name, deadline) != _MAGIC:
        raise HostRefused(f"{name} does not speak as a host of a node")
    theirs, mine = receive_exactly(end, _NONCE, name, deadline), secrets.token_bytes(_NONCE)
    _sent(end, mine + _mac(_key(secret), b"agent", theirs, mine), name)
    return HostLink(end, name, _mac(_key(secret), b"session", theirs, mine), b"agent", b"first", deadline)


def parts_of(address: str) -> tuple[str, int]:
    """Host and port of an address, as the settings have checked it."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def receive_exactly(end: socket.socket, size: int, name: str, deadline: float | None = None) -> bytes:
    """So many bytes. Raises HostUnreachable where the connection ends before, or the time is over."""
    found = bytearray()
    while len(found) < size:
        if deadline is not None:
            end.settimeout(max(_LEAST_SECONDS, deadline - time.monotonic()))
        try:
            some = end.recv(size - len(found))
        except OSError as error:
            raise HostUnreachable(f"{name}: {error}") from None
        if not some:
            raise HostUnreachable(f"{name} closed the connection")
        found += some
    return bytes(found)


def ended(end: socket.socket, seconds: float = 0.0) -> bool:
    """Whether the other end has closed the connection, or does so within so many seconds, whatever is still to be read."""
    poll = select.poll()
    poll.register(end, select.POLLRDHUP)
    return bool(poll.poll(1e3 * seconds))


def own_address(address: str) -> str:
    """This host's own address on the way to the host of `host:port`. Sends nothing. Raises HostUnreachable."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(parts_of(address))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise HostUnreachable(f"{address}: {error}") from None


def interface_of(addresses: Sequence[str]) -> str | None:
    """The network interface whose first IPv4 address is the first of these that any has; None: none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found: dict[str, str] = {}
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has no IPv4 address
                continue
            found.setdefault(socket.inet_ntoa(answer[20:24]), name)
    return next((found[address] for address in addresses if address in found), None)


def _keep_alive(end: socket.socket) -> None:
    """Notice within a minute that the other host is gone, where nothing is under way, and do not gather small messages."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, _IDLE), (socket.TCP_KEEPINTVL, _EVERY), (socket.TCP_KEEPCNT, _PROBES)):
        end.setsockopt(socket.IPPROTO_TCP, option, value)


def _sent(end: socket.socket, body: bytes, name: str) -> None:
    try:
        end.sendall(body)
    except OSError as error:
        raise HostUnreachable(f"{name}: {error}") from None


def _key(secret: SecretStr) -> bytes:
    return secret.get_secret_value().encode()


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(len(part).to_bytes(8) + part for part in parts), hashlib.sha256().name)
