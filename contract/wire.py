"""Messages between the service's fleet API and the worker daemons.

Ids and tokens are opaque here. Durations are in seconds; clocks of different machines are never compared. A non-finite loss is
sent as null. `PROTOCOL` is the version spoken; a peer of PROTOCOL - 1 still works.
"""

import math
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    Field,
)

from contract.adapter_manifest import AdapterFile, AdapterManifest
from contract.compatibility.lenient_documents import SentConfig, SentSpec
from contract.states import ExitReason, JobStatus, RequeueReason
from contract.strict import Message, Sha256
from contract.task_spec import Precision

PROTOCOL = 1


def _finite_or_none(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _finite_or_none_each(values: list[float | None]) -> list[float | None]:
    known = [value for value in values if value is not None]
    if all(map(math.isfinite, known)):
        return values  # the common case: a call for each value took as long as everything else about a report
    return [None if value is None or not math.isfinite(value) else value for value in values]


Loss = Annotated[float | None, BeforeValidator(_finite_or_none)]  # None: the loss was not finite
Losses = Annotated[list[float | None], AfterValidator(_finite_or_none_each)]

# ---- a node and its leases -------------------------------------------------------------------------------------------


class Device(Message):
    """One accelerator, or one CPU slot that stands in for one."""

    index: Annotated[int, Field(ge=0)]
    type: str  # "cpu" or the accelerator's product name
    memory_bytes: Annotated[int, Field(ge=0)]


NodeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


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


class NodeWelcome(Message):
    node_id: str
    credential: str  # the node's bearer from now on: the proposed one, or one made by the service
    stream: str  # the Redis stream with this node's wakeups
    heartbeat_seconds: float
    lease_seconds: float
    protocol: int = 1  # the service's; a service of 0.1.0 omits it


class Pulse(Message):
    """How one placement does. `progress_age` is how long ago its executor last finished anything; `waits_for` what it cannot
    go on without, in a sentence: room on the node's disk."""

    placement_id: str
    fence: int
    phase: Literal["loading", "training", "detaching"]
    progress_age: Annotated[float, Field(ge=0)]
    waits_for: Annotated[str, Field(max_length=1000)] | None = None


class Heartbeat(Message):
    """`applied_version` is that of the desired state which the daemon last acted upon, `applied_age` how long ago it did. Both
    are left out before the first, and by a worker of 0.1.0."""

    protocol: int = PROTOCOL
    boot_id: str
    pulses: list[Pulse] = Field(default=[])
    applied_version: int | None = None
    applied_age: Annotated[float, Field(ge=0)] | None = None


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


# ---- what a node should run ------------------------------------------------------------------------------------------


class BaseModelRef(Message):
    """The frozen base. `revision` is the sha256 over its safetensors files, checked by the worker before it trains."""

    name: str
    source: str
    revision: Sha256
    precision: Precision = "bf16"  # on a CPU float32 stands for bf16


class FileRef(Message):
    """An immutable JSONL file, served by the fleet API to the placement's token."""

    file_id: str
    sha256: Sha256
    rows: int


class CheckpointRef(Message):
    """One job's resume state: an object of storage, taken after `step` optimizer steps."""

    step: int
    sha256: Sha256
    bytes: int


class WarmStartRef(Message):
    """The adapter that all jobs start from: the files of a PEFT folder, objects of storage."""

    adapter_id: str
    files: list[AdapterFile]


class JobAssignment(Message):
    """A job as Postgres knows it. An ended job comes along because its losses at the rungs still count in the ranking."""

    job_id: str
    index: int
    config: SentConfig
    status: JobStatus
    exit_reason: ExitReason | None = None
    warmup_val_loss: float | None = None  # set once the job finished warmup, which is its first rung
    rung_losses: list[float] = Field(default=[])  # of an ended job under asha: validation losses at the rungs it reached
    promoted: bool = False  # passed the warmup boundary; never ranked again
    checkpoint: CheckpointRef | None = None


class Placement(Message):
    """One task on one executor, under one lease and fence."""

    placement_id: str
    fence: int
    token: str
    lease_seconds: float  # counted from when the request that fetched this was sent
    task_id: str
    device_indexes: list[int]
    base: BaseModelRef
    train_file: FileRef
    validation_file: FileRef | None
    spec: SentSpec  # as sent, completed with the defaults of the task's creation time; fields of a newer version preserved
    jobs: list[JobAssignment]
    base_val_loss: float | None = None  # None until a placement has measured it
    leave: bool = False  # to be detached: a last checkpoint of all jobs, then Detached; no more training
    warm_start: WarmStartRef | None = None
    next_seq: int = 1  # the next report that the service expects
    request_id: str | None = None  # of the API call that created the task, for logs
    tenant_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,64}$")] = (
        ""  # the tenant that owns the data; an older service omits it
    )
    created_at: AwareDatetime | None = None  # of the task: the date that a chat template renders


class Unchanged(Message):
    """A placement that this service cannot describe, since a newer version made its task. Its node goes on with what it has."""

    placement_id: str
    leave: bool = False


class DesiredState(Message):
    """Everything the node should run, and nothing else: what is in neither list is to be detached."""

    version: int
    placements: list[Placement]
    unchanged: list[Unchanged] = Field(default=[])


# ---- what a placement reports ----------------------------------------------------------------------------------------


class Attached(Message):
    """The executor took the placement and knows its rows. `total_steps` by job index."""

    kind: Literal["attached"] = "attached"
    train_rows: Annotated[int, Field(ge=1)]
    validation_rows: int
    truncated_rows: int  # longer than max_seq_len, truncated
    skipped_rows: int  # skipped: no label left after truncation
    unused_validation_rows: int = 0  # held out, but left out of evaluations by early_exit.max_evaluation_share
    total_steps: dict[int, int]
    warmup_steps: dict[int, int]


class ActivationsChosen(Message):
    """How the task's training passes hold their activations from now on: all kept, or computed again in backward, and why."""

    kind: Literal["activations_chosen"] = "activations_chosen"
    recompute: bool
    reason: Annotated[str, Field(max_length=2000)]


class BaseEvaluated(Message):
    kind: Literal["base_evaluated"] = "base_evaluated"
    val_loss: Loss


class JobMoved(Message):
    """A job entered warmup, was parked at its boundary, or was promoted past it."""

    kind: Literal["job_moved"] = "job_moved"
    job: int
    status: Literal[JobStatus.WARMUP, JobStatus.PARKED, JobStatus.TRAINING]
    step: int
    warmup_val_loss: Loss = None  # with status parked, and with training if it was never parked


# Under dpo, besides the losses: the share of pairs whose chosen answer has the higher reward, and the mean difference.
Series = Literal["train_loss", "val_loss", "train_accuracy", "train_margin", "val_accuracy", "val_margin"]


class Points(Message):
    """Points of one series of one job; `steps` ascend strictly, and no step of a series is ever reported twice."""

    kind: Literal["points"] = "points"
    job: int
    series: Series
    steps: Annotated[list[int], Field(min_length=1, max_length=256)]
    values: Annotated[Losses, Field(min_length=1, max_length=256)]


class Throughput(Message):
    """Work done since the last record. `forwards` counts backbone training forwards, `micro_batches` what was packed, `rows`
    the adapter rows that were trained, summed over the steps.

    `seconds` are those of every step that the placement had a part in; `share_seconds` are its part of them, by tokens. They
    differ where tasks share steps. A worker that does not know shares leaves them out.

    Where a placement's devices step at once, `device_steps` counts the steps of each, and `device_seconds` are what each took
    until its own was done: so they say how fast one device is. A worker that trains on one leaves them out, or says the same.
    """

    kind: Literal["throughput"] = "throughput"
    steps: int
    tokens: int
    seconds: float
    micro_batches: int
    forwards: int
    rows: int = 0
    evaluation_tokens: int = 0
    evaluation_seconds: float = 0.0
    share_seconds: float | None = None
    device_steps: int | None = None
    device_seconds: float | None = None

    @property
    def own_seconds(self) -> float:
        """Device seconds spent for this placement alone, per device."""
        return (self.seconds if self.share_seconds is None else self.share_seconds) + self.evaluation_seconds


class Checkpointed(Message):
    """All unfinished jobs at one common moment, uploaded. Jobs not named keep the checkpoint they had."""

    kind: Literal["checkpointed"] = "checkpointed"
    jobs: dict[int, CheckpointRef]


class AdapterKept(Message):
    """The job's best adapter, uploaded and ready to commit; sent before the event that ends the job."""

    kind: Literal["adapter_kept"] = "adapter_kept"
    job: int
    manifest: AdapterManifest


class JobCompleted(Message):
    kind: Literal["job_completed"] = "job_completed"
    job: int
    step: int
    best_step: int | None
    best_val_loss: Loss


class JobExited(Message):
    """Early exit ended the job; `evidence` is what decided it (the windows of losses, slopes, ranks, thresholds)."""

    kind: Literal["job_exited"] = "job_exited"
    job: int
    step: int
    reason: ExitReason
    evidence: dict[str, float | int | str | list[Loss] | None]
    best_step: int | None
    best_val_loss: Loss


class JobFailed(Message):
    kind: Literal["job_failed"] = "job_failed"
    job: int
    step: int
    error: Annotated[str, Field(max_length=2000)]


class PlacementFailed(Message):
    """The placement cannot go on for a reason that another try would meet again (bad dataset, unknown architecture)."""

    kind: Literal["placement_failed"] = "placement_failed"
    error: Annotated[str, Field(max_length=2000)]


class Detached(Message):
    """The executor let the task go, after its last checkpoint was committed."""

    kind: Literal["detached"] = "detached"


Event = Annotated[
    Attached
    | ActivationsChosen
    | BaseEvaluated
    | JobMoved
    | Points
    | Throughput
    | Checkpointed
    | AdapterKept
    | JobCompleted
    | JobExited
    | JobFailed
    | PlacementFailed
    | Detached,
    Field(discriminator="kind"),
]


class Report(Message):
    """Events in the order they happened. `seq` counts a placement's reports from 1 without gaps."""

    protocol: int = PROTOCOL
    fence: int
    seq: Annotated[int, Field(ge=1)]
    events: Annotated[list[Event], Field(min_length=1, max_length=512)]


class ReportAck(Message):
    """`seq` is the highest report applied; a repeated report changes nothing and gets the same answer."""

    seq: int


class PlacementsLost(Message):
    """From the daemon: executors that died, or would not detach, took these placements with them.

    With `refused` the daemon could not read them, so no executor had them; another node may.
    """

    reason: RequeueReason
    fences: dict[str, int]  # placement id -> its fence when it was lost
    detail: Annotated[str, Field(max_length=2000)] = ""
    refused: bool = False


class UploadRequest(Message):
    fence: int
    sha256: Sha256
    bytes: Annotated[int, Field(ge=0)]


class UploadGrant(Message):
    """Where to PUT the object. With `exists` storage already holds it and nothing is to be sent."""

    exists: bool
    url: str | None = None
    headers: dict[str, str] = Field(default={})
