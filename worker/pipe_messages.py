"""Messages between the daemon and its children: one JSON message a line, over the children's standard input and output.

A child on a further host of the node has a connection for them. A closed pipe tells its reader that the other process has
ended. Times are on the boot clock.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, Annotated, Literal, Protocol, TypeVar

from pydantic import Field, TypeAdapter

from contract.messages.node_messages import HeartbeatAnswer
from contract.messages.placement_messages import AnswersOnly, MergeWork, Placement
from contract.strict import Message

T = TypeVar("T")
_BLOCK = 2**16
Phase = Literal["loading", "training", "detaching"]

# ---- daemon to executor ----------------------------------------------------------------------------------------------


class Attach(Message):
    kind: Literal["attach"] = "attach"
    placement: Placement
    deadline: float  # of its lease
    sent_at: float = Field(default_factory=time.time)  # epoch seconds


class Serve(Message):
    """Hold a base to answer completions alone."""

    kind: Literal["serve"] = "serve"
    placement: AnswersOnly
    deadline: float  # of its lease
    sent_at: float = Field(default_factory=time.time)  # epoch seconds


class Merge(Message):
    """The only thing that a merging process does."""

    kind: Literal["merge"] = "merge"
    placement: MergeWork
    deadline: float  # of its lease


class Renew(Message):
    kind: Literal["renew"] = "renew"
    placement_id: str
    deadline: float
    token: str


class Detach(Message):
    """Drop the placement. Without `keep` the service has ended it and ignores later reports about it.

    With `keep` it is still valid: the executor first checkpoints its jobs and sends all reports, while its lease lasts.
    """

    kind: Literal["detach"] = "detach"
    placement_id: str
    keep: bool = False


class Stop(Message):
    """End within `seconds`, after checkpointing the jobs where that is possible."""

    kind: Literal["stop"] = "stop"
    seconds: float


Command = Annotated[Attach | Serve | Renew | Detach | Stop, Field(discriminator="kind")]
MergeCommand = Annotated[Merge | Renew | Detach | Stop, Field(discriminator="kind")]

# ---- executor to daemon ----------------------------------------------------------------------------------------------


class ExecutorProgress(Message):
    """Phases of the executor's placements, what some of them wait for, and when it last made progress."""

    kind: Literal["progress"] = "progress"
    phases: dict[str, Phase]
    waits: dict[str, str] = Field(default={})
    loading: dict[str, str] = Field(default={})  # how far the fetching, then the loading, of their bases is
    at: float


class PlacementEnded(Message):
    """The placement has left the executor. `lost`: the service did not end it, so the daemon must report the loss, which
    `by_node` counts against the node alone, not the task or the devices."""

    kind: Literal["ended"] = "ended"
    placement_id: str
    lost: bool
    by_node: bool = False
    detail: str = ""


ExecutorNews = Annotated[ExecutorProgress | PlacementEnded, Field(discriminator="kind")]

# ---- daemon to heartbeat and back ------------------------------------------------------------------------------------


class Identity(Message):
    """The node that the heartbeat process reports for; the first message it gets."""

    kind: Literal["identity"] = "identity"
    api_url: str
    node_id: str
    credential: str
    boot_id: str
    seconds: float  # between heartbeats
    bases: str  # the folder of the node's cache of bases


class PlacementPulse(Message):
    """A placement to report: its phase, when its executor last made progress, and what it waits for."""

    placement_id: str
    fence: int
    phase: Phase
    progress_at: float
    waits_for: str | None = None
    loading: str | None = None


class Pulses(Message):
    """All placements of the node, and which desired state the daemon applied last, when. `now`: send a heartbeat at once."""

    kind: Literal["pulses"] = "pulses"
    placements: list[PlacementPulse]
    now: bool = False
    applied_version: int | None = None
    applied_at: float = 0.0


HeartbeatCommand = Annotated[Identity | Pulses, Field(discriminator="kind")]


class HeartbeatResult(Message):
    """An answered heartbeat, and when it was sent."""

    kind: Literal["beat"] = "beat"
    sent_at: float
    answer: HeartbeatAnswer


class UnknownNode(Message):
    """The service does not know this node, or no longer under this boot."""

    kind: Literal["unknown"] = "unknown"


HeartbeatNews = Annotated[HeartbeatResult | UnknownNode, Field(discriminator="kind")]

COMMANDS: TypeAdapter[Attach | Serve | Renew | Detach | Stop] = TypeAdapter(Command)
MERGE_COMMANDS: TypeAdapter[Merge | Renew | Detach | Stop] = TypeAdapter(MergeCommand)
EXECUTOR_NEWS: TypeAdapter[ExecutorProgress | PlacementEnded] = TypeAdapter(ExecutorNews)
HEARTBEAT_COMMANDS: TypeAdapter[Identity | Pulses] = TypeAdapter(HeartbeatCommand)
HEARTBEAT_NEWS: TypeAdapter[HeartbeatResult | UnknownNode] = TypeAdapter(HeartbeatNews)


class Output(Protocol):
    """What a Writer writes to: a pipe's file, or a connection."""

    def write(self, line: bytes, /) -> object: ...

    def flush(self) -> None: ...


class Writer:
    """Thread-safe writer of messages, one a line. Ignores a closed pipe, or a lost connection: the reading thread notices that
    a process ended."""

    def __init__(self, file: Output) -> None:
        self._file = file
        self._lock = threading.Lock()

    def write(self, message: Message) -> None:
        line = message.model_dump_json().encode() + b"\n"
        with self._lock:
            try:
                self._file.write(line)
                self._file.flush()
            except (OSError, ValueError):
                return


def read(descriptor: int, messages: TypeAdapter[T]) -> Iterator[T]:
    """The messages of a pipe until it closes, or of a connection until it is lost. Reads the descriptor directly: a thread
    blocked in a file object keeps the interpreter from exiting."""
    rest = b""
    while block := _block(descriptor):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield messages.validate_json(line)


def _block(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _BLOCK)
    except OSError:  # the other end was lost with its host
        return b""


def take_stdout() -> IO[bytes]:
    """The pipe to the daemon, on a new descriptor. Redirects standard output to standard error, so that prints cannot corrupt
    it."""
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return pipe
