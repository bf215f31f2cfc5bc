"""Messages of a node: its registration, heartbeats that renew leases, and the placements that it lost.

Ids and tokens are opaque here. Durations are in seconds; clocks of different machines are never compared.
"""

from typing import Annotated, Literal

from pydantic import Field

from contract.compatibility.protocol import PROTOCOL
from contract.states import RequeueReason
from contract.strict import Message, Sha256


class Device(Message):
    """One accelerator, or one CPU slot that stands in for one."""

    index: Annotated[int, Field(ge=0)]
    type: str  # "cpu" or the accelerator's product name
    memory_bytes: Annotated[int, Field(ge=0)]


NodeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]

# whom a join token lets in: the node of this name, or with * at the end all nodes whose names begin so
JoinName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}|[A-Za-z0-9._-]{0,61}\*)$")]


# fetched bases that the node's disk holds whole, by content (contract.model_revision); left out: not known
HeldBases = Annotated[list[Sha256], Field(max_length=1000)]


class NodeRegistration(Message):
    """A daemon that starts. A new `boot_id` under a known name fences every placement of the boot before it.

    Its bearer is a join token that was made for this name, or the node's own credential.
    """

    protocol: int = PROTOCOL
    name: NodeName
    boot_id: Annotated[str, Field(min_length=8, max_length=64)]
    # the credential that the node proposes, stored before it is sent: a lost answer locks nobody out
    credential: Annotated[str, Field(pattern=r"^nc_[A-Za-z0-9_-]{43,100}$")] | None = None
    devices: Annotated[list[Device], Field(min_length=1, max_length=64)]
    versions: dict[str, str] = Field(default={})
    capabilities: list[str] | None = None  # contract.compatibility.capabilities; a worker of 0.1.0 omits them
    bases: HeldBases | None = None  # as in a heartbeat


class NodeWelcome(Message):
    node_id: str
    credential: str  # the node's bearer from now on: the proposed one, or one made by the service
    stream: str  # the Redis stream with this node's wakeups
    heartbeat_seconds: float
    lease_seconds: float
    protocol: int = 1  # the service's; a service of 0.1.0 omits it


class Pulse(Message):
    """How one placement does. `progress_age` is how long ago its executor last finished anything; `waits_for` what it cannot
    go on without, in a sentence: room on the node's disk. `loading`: how far the fetching, then the loading, of its base
    is, in a sentence."""

    placement_id: str
    fence: int
    phase: Literal["loading", "training", "detaching"]
    progress_age: Annotated[float, Field(ge=0)]
    waits_for: Annotated[str, Field(max_length=1000)] | None = None
    loading: Annotated[str, Field(max_length=1000)] | None = None


class Heartbeat(Message):
    """`applied_version` is that of the desired state which the daemon last acted upon, `applied_age` how long ago it did. Both
    are left out before the first, and by a worker of 0.1.0."""

    protocol: int = PROTOCOL
    boot_id: str
    pulses: list[Pulse] = Field(default=[])
    applied_version: int | None = None
    applied_age: Annotated[float, Field(ge=0)] | None = None
    bases: HeldBases | None = None
    base_bytes_per_second: Annotated[float, Field(gt=0)] | None = None  # as measured when the node fetched bases; None: never


class LeaseGrant(Message):
    """A lease of `seconds`, counted on the worker's boot clock from when the heartbeat was sent."""

    placement_id: str
    fence: int
    seconds: float
    token: str  # bearer for every request about this placement


class HeartbeatAnswer(Message):
    """Leases of the placements that go on. One that is missing has ended; the daemon then fetches its desired state."""

    leases: list[LeaseGrant]
    desired_version: int  # changes whenever this node's desired state does


class PlacementsLost(Message):
    """From the daemon: executors that died, or would not detach, took these placements with them.

    With `refused` the daemon could not read them, so no executor had them; another node may. With `untaken` it could start no
    executor for them, or its disk did not give back what they need: that counts against the node alone. With `stopping` the
    daemon was asked to end, so the node takes nothing until it registers again; there may be no placements.
    """

    reason: RequeueReason
    fences: dict[str, int]  # placement id -> its fence when it was lost
    detail: Annotated[str, Field(max_length=2000)] = ""
    refused: bool = False
    untaken: bool = False
    stopping: bool = False
