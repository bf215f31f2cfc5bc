"""What the daemon and its children say to each other: one JSON message a line, over the children's standard input and output.

A closed pipe is a message too: whoever reads the end of it knows that the other side is gone. Times are on the boot clock.
"""

import os
import sys
import threading
from collections.abc import Iterator
from typing import IO, Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter

from contract.strict import Message
from contract.wire import HeartbeatAnswer, Placement

T = TypeVar("T")
_BLOCK = 2**16
Phase = Literal["loading", "training", "detaching"]

# ---- daemon to executor ----------------------------------------------------------------------------------------------


class Attach(Message):
    kind: Literal["attach"] = "attach"
    placement: Placement
    deadline: float  # of its lease


class Renew(Message):
    kind: Literal["renew"] = "renew"
    placement_id: str
    deadline: float
    token: str


class Detach(Message):
    """Let the placement go. Unless `keep`, it has ended, and whatever is still said about it is in vain.

    With `keep` it still stands: its jobs are brought to safety and all is told first, for as long as its lease lasts.
    """

    kind: Literal["detach"] = "detach"
    placement_id: str
    keep: bool = False


class Stop(Message):
    """End within `seconds`, with the work brought to safety where that is possible."""

    kind: Literal["stop"] = "stop"
    seconds: float


Command = Annotated[Attach | Renew | Detach | Stop, Field(discriminator="kind")]

# ---- executor to daemon ----------------------------------------------------------------------------------------------


class Progress(Message):
    """How the executor's placements do, and when it last finished anything."""

    kind: Literal["progress"] = "progress"
    phases: dict[str, Phase]
    at: float


class Ended(Message):
    """The placement is no longer here. `lost` ones ended without the service's doing, which has to be told."""

    kind: Literal["ended"] = "ended"
    placement_id: str
    lost: bool
    detail: str = ""


ExecutorNews = Annotated[Progress | Ended, Field(discriminator="kind")]

# ---- daemon to heartbeat and back ------------------------------------------------------------------------------------


class Identity(Message):
    """Whom the heartbeat speaks for; the first message it gets."""

    kind: Literal["identity"] = "identity"
    api_url: str
    node_id: str
    credential: str
    boot_id: str
    seconds: float  # between heartbeats


class Beating(Message):
    """A placement that is to be told of: how far it is, and when its executor last finished anything."""

    placement_id: str
    fence: int
    phase: Phase
    progress_at: float


class Pulses(Message):
    """All placements of the node, and which desired state the daemon acted upon last, when. With `now` a heartbeat is sent
    at once."""

    kind: Literal["pulses"] = "pulses"
    placements: list[Beating]
    now: bool = False
    applied_version: int | None = None
    applied_at: float = 0.0


Wish = Annotated[Identity | Pulses, Field(discriminator="kind")]


class Beat(Message):
    """A heartbeat that was answered, and when it had been sent."""

    kind: Literal["beat"] = "beat"
    sent_at: float
    answer: HeartbeatAnswer


class Unknown(Message):
    """The service does not know this node, or no longer under this boot."""

    kind: Literal["unknown"] = "unknown"


HeartbeatNews = Annotated[Beat | Unknown, Field(discriminator="kind")]

COMMANDS: TypeAdapter[Attach | Renew | Detach | Stop] = TypeAdapter(Command)
EXECUTOR_NEWS: TypeAdapter[Progress | Ended] = TypeAdapter(ExecutorNews)
WISHES: TypeAdapter[Identity | Pulses] = TypeAdapter(Wish)
HEARTBEAT_NEWS: TypeAdapter[Beat | Unknown] = TypeAdapter(HeartbeatNews)


class Writer:
    """Writes messages, a line each; any thread may. A reader that is gone is not an error: its end is read elsewhere."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._lock = threading.Lock()

    def write(self, message: Message) -> None:
        line = message.model_dump_json().encode() + b"\n"
        with self._lock:
            try:
                self._file.write(line)
                self._file.flush()
            except (BrokenPipeError, ValueError):
                return


def read(descriptor: int, messages: TypeAdapter[T]) -> Iterator[T]:
    """The messages of a pipe until it closes. Reads the descriptor itself: a thread that waits in a file object keeps the
    interpreter from ending."""
    rest = b""
    while block := os.read(descriptor, _BLOCK):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield messages.validate_json(line)


def take_stdout() -> IO[bytes]:
    """The pipe to the daemon, out of reach of whatever prints: standard output goes to standard error from now on."""
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return pipe
