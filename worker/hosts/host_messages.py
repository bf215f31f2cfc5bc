"""What the first host of a node and the agent of a further one say to each other. Values."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from contract.messages.node_messages import Device
from contract.strict import Message

EXECUTOR_MODULE, RANK_MODULE = "worker.executor", "worker.replicas.ranks"

# ---- first host to agent ---------------------------------------------------------------------------------------------


class Join(Message):
    """The first message of the connection that the node keeps to each host. versions: as of program_versions. folder:
    the node's own subfolder of MOTET_WORKER_DIR. probe: a file in it that the first host has just written."""

    kind: Literal["join"] = "join"
    versions: dict[str, str]
    folder: str
    probe: str


class Ping(Message):
    kind: Literal["ping"] = "ping"


class Start(Message):
    """Start a process; from its Started on, the connection is the process's. environment: as of
    host_map.node_environment, and more."""

    kind: Literal["start"] = "start"
    module: Literal["worker.executor", "worker.replicas.ranks"]
    environment: dict[str, str]


# ---- agent to first host ---------------------------------------------------------------------------------------------


class HostDescription(Message):
    """Answers Join. lacking: capabilities, as of device_discovery.beyond_hardware. agent: another for each agent."""

    kind: Literal["host"] = "host"
    devices: list[Device]
    lacking: list[str]
    agent: str


class Pong(Message):
    """boot_time: seconds on the host's boot clock."""

    kind: Literal["pong"] = "pong"
    boot_time: float


class Leaving(Message):
    """Answers a ping: the agent was asked to end, and waits for the node to give back what runs here."""

    kind: Literal["leaving"] = "leaving"


class Started(Message):
    kind: Literal["started"] = "started"
    pid: int


class Declined(Message):
    """why: a sentence for the operator, who has to change something."""

    kind: Literal["declined"] = "declined"
    why: str


REQUESTS: TypeAdapter[Join | Ping | Start] = TypeAdapter(Annotated[Join | Ping | Start, Field(discriminator="kind")])
ANSWERS: TypeAdapter[HostDescription | Pong | Leaving | Started | Declined] = TypeAdapter(
    Annotated[HostDescription | Pong | Leaving | Started | Declined, Field(discriminator="kind")]
)
