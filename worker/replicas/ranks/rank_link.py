"""The socket between rank 0 and another rank of its executor: pickled messages, their tensors in shared memory beside them, or
between hosts within them.

On one host a Unix socket pair, so that descriptors of shared memory travel with a message, and the end of a process closes its
end. Rank 0 started the process at the other end, or had an agent start it that has its secret: nothing unpickled here comes
from elsewhere. Knows no replicas.
"""

import io
import logging
import pickle
import select
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from worker.replicas.ranks.shared_host_memory import Handle, SharedHostMemory

log = logging.getLogger(__name__)

_HEADER = struct.Struct("!QI")  # bytes of the message, descriptors beside it
_AT_ONCE = 128  # descriptors with one byte; Linux takes up to 253


class LinkClosed(ConnectionError):
    """The process at the other end has ended, or closed its end."""


class Link(ABC):
    """One thread at a time sends, one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    @abstractmethod
    def send(self, message: object) -> list[Tensor]:
        """Send a message. Returns the tensors that it names, which must live until the receiver has read them. Raises
        LinkClosed."""

    @abstractmethod
    def receive(self) -> Any:
        """The next message. Raises LinkClosed."""

    def waits(self, seconds: float) -> bool:
        """Whether a message, or the end, comes within so many seconds."""
        return bool(self._poll.poll(1e3 * seconds))

    @contextmanager
    def repeating(self, message: object, seconds: float) -> Iterator[Callable[[], None]]:
        """Send the message every so many seconds meanwhile, and nothing else: the other end learns that this process runs.
        Where no more threads are started it is sent when what is yielded is called, which sends nothing otherwise."""
        over = threading.Event()

        def say() -> None:
            self.send(message)

        def repeat() -> None:
            with suppress(LinkClosed):  # who receives notices
                while not over.wait(seconds):
                    say()

        thread = threading.Thread(target=repeat, name="link", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.warning("this rank says seldom that it runs, since the system starts no more threads: %s", error)
            yield say
            return
        try:
            yield lambda: None
        finally:
            over.set()
            thread.join()

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytearray:
        body = bytearray(size)
        view, done = memoryview(body), 0
        while done < size:
            got = self._socket.recv_into(view[done:])
            if not got:
                raise LinkClosed("it is closed")
            done += got
        return body


class RankLink(Link):
    """On one host."""

    def __init__(self, end: socket.socket, memory: SharedHostMemory) -> None:
        super().__init__(end)
        self._memory = memory

    def send(self, message: object) -> list[Tensor]:
        body, descriptors = io.BytesIO(), list[int]()
        pickler = _Pickler(body, self._memory, descriptors)
        pickler.dump(message)
        try:
            header = _HEADER.pack(body.tell(), len(descriptors))
            if not descriptors:
                self._socket.sendall(header + body.getvalue())  # at once: the first bytes wake the receiver
                return pickler.named
            self._socket.sendall(header)
            for first in range(0, len(descriptors), _AT_ONCE):
                socket.send_fds(self._socket, [b"."], descriptors[first : first + _AT_ONCE])
            self._socket.sendall(body.getbuffer())
        except OSError as error:
            raise LinkClosed(str(error)) from None
        return pickler.named

    def receive(self) -> Any:
        try:
            size, count = _HEADER.unpack(self._exactly(_HEADER.size))
            descriptors: list[int] = []
            while len(descriptors) < count:
                dot, some, _, _ = socket.recv_fds(self._socket, 1, _AT_ONCE)
                if not dot:
                    raise LinkClosed("it ended within a message")
                descriptors += some
            return _Unpickler(io.BytesIO(self._exactly(size)), self._memory, descriptors).load()
        except OSError as error:
            raise LinkClosed(str(error)) from None


class HostRankLink(Link):
    """Between hosts. What is received is main memory of its own."""

    @property
    def own_address(self) -> str:
        """Of this host, on the way to the other."""
        return str(self._socket.getsockname()[0])

    def send(self, message: object) -> list[Tensor]:
        body = io.BytesIO()
        pickler = _InlinePickler(body)
        pickler.dump(message)
        sizes = [tensor.nbytes for tensor in pickler.named]
        try:
            self._socket.sendall(_HEADER.pack(body.tell(), len(sizes)) + struct.pack(f"!{len(sizes)}Q", *sizes))
            self._socket.sendall(body.getbuffer())
            for tensor in pickler.named:
                if tensor.nbytes:
                    self._socket.sendall(tensor.view(-1).view(torch.uint8).numpy().data)
        except OSError as error:
            raise LinkClosed(str(error)) from None
        return []

    def receive(self) -> Any:
        try:
            size, count = _HEADER.unpack(self._exactly(_HEADER.size))
            sizes = struct.unpack(f"!{count}Q", self._exactly(8 * count))
            body = self._exactly(size)
            return _InlineUnpickler(io.BytesIO(body), [self._exactly(each) for each in sizes]).load()
        except OSError as error:
            raise LinkClosed(str(error)) from None


class _Pickler(pickle.Pickler):
    def __init__(self, body: io.BytesIO, memory: SharedHostMemory, descriptors: list[int]) -> None:
        super().__init__(body, pickle.HIGHEST_PROTOCOL)
        self._memory, self._descriptors = memory, descriptors
        self.named: list[Tensor] = []

    def persistent_id(self, obj: object) -> Handle | None:
        if not isinstance(obj, Tensor):
            return None
        handle, tensor = self._memory.handle(obj, self._descriptors)
        self.named.append(tensor)
        return handle


class _Unpickler(pickle.Unpickler):
    def __init__(self, body: io.BytesIO, memory: SharedHostMemory, descriptors: list[int]) -> None:
        super().__init__(body)
        self._memory, self._descriptors = memory, descriptors

    def persistent_load(self, pid: Handle) -> Tensor:
        return self._memory.received(pid, self._descriptors)


class _InlinePickler(pickle.Pickler):
    """Tensors as (place among the message's, dtype, shape)."""

    def __init__(self, body: io.BytesIO) -> None:
        super().__init__(body, pickle.HIGHEST_PROTOCOL)
        self.named: list[Tensor] = []

    def persistent_id(self, obj: object) -> tuple[int, torch.dtype, tuple[int, ...]] | None:
        if not isinstance(obj, Tensor):
            return None
        self.named.append(obj.detach().cpu().contiguous())
        return len(self.named) - 1, obj.dtype, tuple(obj.shape)


class _InlineUnpickler(pickle.Unpickler):
    def __init__(self, body: io.BytesIO, tensors: list[bytearray]) -> None:
        super().__init__(body)
        self._tensors = tensors

    def persistent_load(self, pid: tuple[int, torch.dtype, tuple[int, ...]]) -> Tensor:
        place, dtype, shape = pid
        held = self._tensors[place]
        return torch.frombuffer(held, dtype=dtype).view(shape) if held else torch.empty(shape, dtype=dtype)
