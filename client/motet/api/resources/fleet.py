"""Base models, nodes and the schedule, as the API answers them."""

from datetime import datetime

from pydantic import Field

from contract.strict import Message


class BaseCopyError(Message):
    """Why the last attempt to copy a base failed."""

    code: str = ""
    detail: str = ""


class BaseCopy(Message):
    """A base's files in storage: `copying`, then `stored`, or `failed`. Nodes fetch from there once they are stored."""

    status: str
    received_bytes: int = 0
    total_bytes: int = 0
    attempts: int = 0
    next_attempt_at: datetime | None = None
    error: BaseCopyError | None = None


class Model(Message):
    """A base model that tasks may name. `storage`: None where nodes fetch it from the hub, or have it in a folder."""

    name: str
    revision: str
    architecture: str = ""
    parameters: int = 0
    max_position: int = 0
    commit: str | None = None  # of its repository on the hub
    license: str | None = None
    gated: bool = False
    storage: BaseCopy | None = None


class GpuFit(Message):
    """A type of GPU of the fleet, and in which precisions a base's weights fit it."""

    type: str
    memory_bytes: int
    precisions: list[str] = Field(default=[])
    sharded: dict[str, int] = Field(default={})  # other precisions, with how many GPUs of a node share the base


class HubModel(Model):
    """A base model of the hub, pinned, or as it would be (`dry_run`). `bytes`: what each node downloads that trains on it."""

    source: str
    bytes: int = 0
    fits: list[GpuFit] = Field(default=[])
    dry_run: bool = False


class Storage(Message):
    """Where the service keeps files, checkpoints and adapters. `problem`: why it cannot now; `may_pass` by itself."""

    kind: str
    address: str
    problem: str | None = None
    may_pass: bool | None = None
    seconds: float = 0.0
    free_bytes: int | None = None
    transfer_port: int | None = None
    transfer_url: str | None = None


class NewestBackup(Message):
    """When the newest backup of the service's database was taken; null where none ever was."""

    name: str | None
    taken_at: datetime | None
    age_seconds: float | None


class Device(Message):
    """One GPU, or a CPU slot (type `cpu`) that stands in for one."""

    index: int
    type: str
    memory_bytes: int = 0


class RunningTask(Message):
    """A task on a node's GPUs."""

    task_id: str
    device_indexes: list[int] = Field(default=[])


class Node(Message):
    """A machine of the fleet. `tokens_per_second`: the measured training rate of one of its GPUs, by base model."""

    id: str
    name: str
    status: str
    trouble: str | None = None  # why it is not ready, as a sentence
    losses: int = 0  # consecutive placements lost there
    device_losses: dict[int, int] = Field(default={})  # by device index, since one there last went well
    devices: list[Device] = Field(default=[])
    versions: dict[str, str] = Field(default={})
    tokens_per_second: dict[str, float] = Field(default={})
    running: list[RunningTask] = Field(default=[])
    heartbeat_at: datetime | None = None
    drained_at: datetime | None = None


class ScheduledTask(Message):
    """A task that runs on a node; another tenant's task has no id."""

    task_id: str | None = None
    name: str | None = None
    gpus: int
    since: datetime
    leaving: bool = False
    expected_end: datetime | None = None
    expected_end_interval: tuple[datetime, datetime] | None = None


class Answering(Message):
    """A base that is held on a GPU to answer who asks it; a task takes the GPU at once."""

    base_model: str
    since: datetime


class WantedGpus(Message):
    """What queued tasks of one width ask for; `missing_gpus` is beyond what is free."""

    type: str = "any"
    width: int
    tasks: int
    tasks_that_fit_no_node: int = 0
    gpus: int
    missing_gpus: int
    waiting_since: datetime


class FreeGpus(Message):
    """GPUs of a type that a task could have now."""

    type: str
    gpus: int


class IdleNode(Message):
    """A node that runs nothing; drain it before it is taken away."""

    id: str
    name: str
    type: str
    gpus: int
    idle_since: datetime
    drained: bool = False


class Autoscaling(Message):
    """GPUs that the queue asks for beyond what is free, and nodes that are idle."""

    at: datetime
    wanted: list[WantedGpus] = Field(default=[])
    free: list[FreeGpus] = Field(default=[])
    idle_nodes: list[IdleNode] = Field(default=[])


class ScheduledNode(Message):
    """A node of the fleet and the tasks that run there."""

    name: str
    device_type: str
    gpus: int
    free: int
    drained: bool = False
    status: str = "ready"
    trouble: str | None = None  # why it takes nothing, as a sentence
    running: list[ScheduledTask] = Field(default=[])
    answering: list[Answering] = Field(default=[])


class WaitingTask(Message):
    """A task in the queue; another tenant's task has neither id nor reason."""

    task_id: str | None = None
    name: str | None = None
    gpus: int
    place: int | None = None
    node: str | None = None
    code: str | None = None
    sentence: str | None = None
    expected_start: datetime | None = None
    expected_end: datetime | None = None


class Schedule(Message):
    """What runs where and until when, what waits and why."""

    planned_at: datetime | None = None
    nodes: list[ScheduledNode]
    waiting: list[WaitingTask]
    waiting_total: int = 0
