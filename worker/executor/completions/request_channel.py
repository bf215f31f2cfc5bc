"""The executor's line to the service for completions: one thread asks for requests, another sends pieces. Generates nothing.

Both speak under the lease of one of the executor's placements, which the training loop names. A service from before completions
answers 404, and is asked again a minute later.
"""

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from contract.messages.completion_messages import (
    ChoicePiece,
    CompletionPiece,
    CompletionPieces,
    CompletionsGiven,
    CompletionsWanted,
    CompletionWork,
)
from worker.api_client import LinkError, PlacementLink, Refused, Unreachable
from worker.executor.placement.placement_lease import Lease

log = logging.getLogger(__name__)

_WAIT_SECONDS = 5.0  # of a poll without anything at hand
_HOLD_SECONDS = 1.5  # of one that also says which requests are at hand
_RETRY_SECONDS, _ABSENT_SECONDS = 0.5, 60.0
# a request's first piece and its last are sent at once; the others gather this long: each sending competes with the training
# loop for the interpreter, and ten pieces a second read as fluently as fifty
_GATHER_SECONDS = 0.1
_MOST_PIECES = 512


class RequestChannel:
    """given, gone, lost are called from the threads: with requests, with those that nobody waits for, and where the service
    takes no pieces under the lease any more. gone: by id the attempt, since the same request may have been given again
    meanwhile; None: whichever is at hand."""

    def __init__(
        self,
        link: PlacementLink,
        given: Callable[[list[CompletionWork]], None],
        gone: Callable[[dict[str, int | None]], None],
        lost: Callable[[], None],
    ) -> None:
        self._link, self._given, self._gone, self._lost = link, given, gone, lost
        self._executor = secrets.token_hex(8)
        self._changed = threading.Condition()
        self._lease: Lease | None = None
        self._room = 0
        self._held: frozenset[str] = frozenset()
        self._pieces: deque[CompletionPiece] = deque()
        self._sent: list[CompletionPiece] = []  # sent again as they are until they are answered: the service may hold them
        self._absent_until = 0.0
        self._closed = threading.Event()
        for work in (self._ask, self._send):
            threading.Thread(target=work, name=f"completions {work.__name__}", daemon=True).start()

    def close(self) -> None:
        """End both threads; a call in progress ends with the link."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()

    @property
    def lease(self) -> Lease | None:
        return self._lease

    def serve(self, lease: Lease | None, room: int, held: frozenset[str]) -> None:
        """Speak under this lease from now on (None: not at all), take up to `room` requests, keep those at hand claimed."""
        if (lease, room, held) == (self._lease, self._room, self._held):
            return
        with self._changed:
            self._lease, self._room, self._held = lease, room, held
            self._changed.notify_all()

    def send(self, piece: CompletionPiece) -> None:
        """Queue a piece; returns at once."""
        with self._changed:
            self._pieces.append(piece)
            self._changed.notify_all()

    # ---- asking ------------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        while not self._closed.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._closed.is_set() or (self._lease and (self._room or self._held)))
                lease, room, held = self._lease, self._room, self._held
            if lease is None:
                continue
            wait = _HOLD_SECONDS if held else _WAIT_SECONDS
            wanted = CompletionsWanted(
                fence=lease.fence, executor=self._executor, room=room, held=sorted(held)[:512], wait=wait
            )
            if (left := self._absent_until - time.monotonic()) > 0:
                self._closed.wait(left)
                continue
            try:
                answer = self._link.completions(lease.placement_id, lease.token, wanted)
            except LinkError as error:
                self._failed(lease, error)
            else:
                self._answered(answer)

    def _answered(self, answer: CompletionsGiven) -> None:
        if answer.gone:
            self._gone(dict.fromkeys(answer.gone))  # none of them is given again but by this thread, later
        if answer.requests:
            with self._changed:
                # claimed from now on: the next poll says so, though the loop has not taken them up yet
                self._held |= {work.request_id for work in answer.requests}
                self._room = max(0, self._room - len(answer.requests))
            self._given(answer.requests)

    def _failed(self, lease: Lease, error: LinkError) -> None:
        if isinstance(error, Unreachable):
            self._closed.wait(_RETRY_SECONDS)
        elif isinstance(error, Refused) and error.status in (401, 409):
            self._drop(lease)
        else:
            log.warning("the service gives no completions: %s", error)
            self._absent_until = time.monotonic() + _ABSENT_SECONDS

    def _drop(self, lease: Lease) -> None:
        """The service knows this lease no more: what is at hand is asked again elsewhere."""
        with self._changed:
            if self._lease is not lease:
                return
            self._lease = None
            self._pieces.clear()
            self._sent = []
        self._lost()
        with self._changed:  # the training loop may name the same one again, until it hears of its end
            self._changed.wait_for(lambda: self._closed.is_set() or self._lease not in (None, lease), timeout=_RETRY_SECONDS)

    # ---- sending -----------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        while not self._closed.is_set():
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed.is_set() or ((self._sent or self._pieces) and self._lease is not None)
                )
                if not self._sent:
                    self._changed.wait_for(lambda: any(map(_is_urgent, self._pieces)), timeout=_GATHER_SECONDS)
                    waiting = [self._pieces.popleft() for _ in range(min(_MOST_PIECES, len(self._pieces)))]
                    self._sent = list(merged(waiting))
                lease, sent = self._lease, self._sent
            if lease is None or not sent:
                continue
            try:
                self._deliver(lease, sent)
            except LinkError as error:
                self._failed(lease, error)
                continue
            with self._changed:
                if self._sent is sent:
                    self._sent = []

    def _deliver(self, lease: Lease, pieces: list[CompletionPiece]) -> None:
        """Send these, one of each request. A request whose piece is refused is given up, and costs no other its own. Raises
        LinkError where the service is away, or knows the lease no more."""
        try:
            message = CompletionPieces(fence=lease.fence, executor=self._executor, pieces=pieces)
            taken = self._link.pieces(lease.placement_id, lease.token, message)
        except LinkError as error:
            if _passes(error):
                raise
            if len(pieces) > 1:
                for piece in pieces:
                    self._deliver(lease, [piece])
                return
            log.warning("completion %s is given up, since the service refuses its text: %s", pieces[0].request_id, error)
            self._gone({pieces[0].request_id: pieces[0].attempt})
        else:
            if taken.gone:
                self._gone({piece.request_id: piece.attempt for piece in pieces if piece.request_id in taken.gone})


def _is_urgent(piece: CompletionPiece) -> bool:
    return piece.number == 1 or piece.over


def _passes(error: LinkError) -> bool:
    """Whether the service is away, or knows the lease no more: no fault of what was sent."""
    return isinstance(error, Unreachable) or (isinstance(error, Refused) and error.status in (401, 409))


def merged(pieces: list[CompletionPiece]) -> Iterator[CompletionPiece]:
    """Pieces of one request and attempt as one, which has the number of the last."""
    by_attempt: dict[tuple[str, int | None], list[CompletionPiece]] = {}
    for piece in pieces:
        by_attempt.setdefault((piece.request_id, piece.attempt), []).append(piece)
    for own in by_attempt.values():
        choices: dict[int, ChoicePiece] = {}
        for choice in (choice for piece in own for choice in piece.choices):
            before = choices.get(choice.index, ChoicePiece(index=choice.index))
            choices[choice.index] = ChoicePiece(
                index=choice.index,
                text=before.text + choice.text,
                logprobs=before.logprobs + choice.logprobs,
                finish_reason=choice.finish_reason or before.finish_reason,
            )
        yield own[-1].model_copy(update={"choices": [choices[index] for index in sorted(choices)]})
