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
from collections.abc import Sequence
from typing import TypeVar

from pydantic import SecretStr, TypeAdapter, ValidationError

from contract.strict import Message

T = TypeVar("T")

_MAGIC = b"motet host 1\n"
_NONCE = _MAC = 32  # bytes
_LENGTH = struct.Struct("!I")
_MOST = 2**20  # bytes of a message
_SECONDS = 10.0  # for a connection, and for what the other end has to say at first
_IDLE, _EVERY, _TIMES = 10, 5, 3  # keepalive: seconds before the first probe, between probes; probes until the end
_SIOCGIFADDR = 0x8915


class HostUnreachable(ConnectionError):
    """There is no answer, or the connection has ended."""


class HostRefused(ValueError):
    """The other end is not what it should be, or does not take the request. The message can be shown to an operator."""


class HostLink:
    """One thread at a time. Messages go both ways until a process takes over the socket."""

    def __init__(self, end: socket.socket, name: str, key: bytes, sends: bytes, receives: bytes) -> None:
        self.socket, self.name = end, name
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
        (size,) = _LENGTH.unpack(exactly(self.socket, _LENGTH.size, self.name))
        if size > _MOST:
            raise HostRefused(f"{self.name} sent a message of {size} bytes")
        body, code = exactly(self.socket, size, self.name), exactly(self.socket, _MAC, self.name)
        if not hmac.compare_digest(code, self._code(self._receives, self._received, body)):
            raise HostRefused(f"{self.name} has another MOTET_WORKER_HOSTS_SECRET, or somebody changed its message")
        self._received += 1
        try:
            return messages.validate_json(body)
        except ValidationError as error:
            raise HostRefused(f"{self.name} sent what this version does not read: {error.errors()[0]['msg']}") from None

    def limit(self, seconds: float | None) -> None:
        """From now on whatever is read or sent may take so long; None: any time."""
        self.socket.settimeout(seconds)

    def close(self) -> None:
        self.socket.close()

    def _code(self, direction: bytes, number: int, body: bytes) -> bytes:
        return _mac(self._key, direction, number.to_bytes(8), body)


def connect(address: str, secret: SecretStr) -> HostLink:
    """To the agent at `host:port`. Raises HostUnreachable, and HostRefused where it does not know the secret."""
    host, port = parts_of(address)
    try:
        end = socket.create_connection((host, port), timeout=_SECONDS)
    except OSError as error:
        raise HostUnreachable(f"{address}: {error}") from None
    try:
        _keep_alive(end)
        mine = secrets.token_bytes(_NONCE)
        _sent(end, _MAGIC + mine, address)
        theirs, proof = exactly(end, _NONCE, address), exactly(end, _MAC, address)
        if not hmac.compare_digest(proof, _mac(_key(secret), b"agent", mine, theirs)):
            raise HostRefused(f"{address} has another MOTET_WORKER_HOSTS_SECRET, or is no agent of Motet")
        return HostLink(end, address, _mac(_key(secret), b"session", mine, theirs), b"first", b"agent")
    except BaseException:
        end.close()
        raise


def accepted(end: socket.socket, name: str, secret: SecretStr) -> HostLink:
    """The agent's end of a new connection. Whether the other end has the secret is seen by its first message. Raises
    HostUnreachable and HostRefused."""
    end.settimeout(_SECONDS)
    _keep_alive(end)
    if exactly(end, len(_MAGIC), name) != _MAGIC:
        raise HostRefused(f"{name} does not speak as a host of a node")
    theirs, mine = exactly(end, _NONCE, name), secrets.token_bytes(_NONCE)
    _sent(end, mine + _mac(_key(secret), b"agent", theirs, mine), name)
    return HostLink(end, name, _mac(_key(secret), b"session", theirs, mine), b"agent", b"first")


def parts_of(address: str) -> tuple[str, int]:
    """Host and port of `host:port`. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 2**16):
        raise ValueError(f"must be host:port, got {address!r}")
    return host, int(port)


def exactly(end: socket.socket, size: int, name: str) -> bytes:
    """So many bytes. Raises HostUnreachable where the connection ends before."""
    found = bytearray()
    while len(found) < size:
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
    """The network interface that has the first of these addresses that is this host's own; None: none is."""
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
    for option, value in ((socket.TCP_KEEPIDLE, _IDLE), (socket.TCP_KEEPINTVL, _EVERY), (socket.TCP_KEEPCNT, _TIMES)):
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
