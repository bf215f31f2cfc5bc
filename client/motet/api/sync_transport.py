"""Carries out the steps of API calls with blocking I/O. Knows no resources."""

import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Any, ParamSpec, TypeVar

import httpx

from motet.api import connection
from motet.api.steps import Action, Emit, Listing, Open, Operation, Read, Send, Sleep

P = ParamSpec("P")
T = TypeVar("T")


class Transport:
    """One base address, one key, one connection pool. Threads may share it."""

    def __init__(self, api_url: str, key: str) -> None:
        self.api_url = api_url
        self._http = httpx.Client(**connection.options(api_url, key))

    def close(self) -> None:
        self._http.close()

    def run(self, operation: Operation[T]) -> T:
        """The call's answer."""
        driving: Generator[Any, None, Any] = self._drive(operation)
        while True:
            try:
                next(driving)
            except StopIteration as end:
                answer: T = end.value
                return answer

    def each(self, listing: Listing[T]) -> Iterator[T]:
        """What the call emits, as it comes."""
        yield from self._drive(listing)

    def _drive(self, steps: Generator[Action | Emit[T], Any, Any]) -> Generator[T, None, Any]:
        answer: Any = None
        body: Iterator[bytes] = iter(())
        with ExitStack() as streams:
            while True:
                try:
                    step = steps.send(answer)
                except StopIteration as end:
                    return end.value
                answer = None
                try:
                    match step:
                        case Send():
                            answer = self._http.request(**connection.sent(step))
                        case Open():
                            streams.close()
                            answer = streams.enter_context(self._http.stream(**connection.streamed(step)))
                            body = answer.iter_bytes()
                            if not answer.is_success:
                                answer.read()
                        case Read():
                            answer = next(body, b"")
                        case Sleep():
                            time.sleep(step.seconds)
                        case Emit():
                            yield step.value
                except httpx.TransportError as error:
                    answer = connection.unreachable(self.api_url, error)
