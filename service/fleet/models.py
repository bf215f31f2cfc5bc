"""Tables of the fleet: base models, nodes, join tokens, and placements with their leases and reported sums."""

from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from sqlalchemy import (
    ColumnElement,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    and_,
    any_,
    case,
    column,
    exists,
    func,
    or_,
    table,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, column_property, mapped_column

from contract.messages.node_messages import Device
from service.database.checked_json import CheckedJson, Unread, UnreadDict, UnreadList
from service.database.claimed_rows import ClaimedRow
from service.database.engine import At, Base, Big, Id, Now

_DEVICES = TypeAdapter(Annotated[list[Device], Field(min_length=1)])  # of a registered node at least one
_TEXTS, _VERSIONS = TypeAdapter(list[str]), TypeAdapter(dict[str, str])
_RATES = TypeAdapter(dict[str, float])
_LOSSES = TypeAdapter(dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], int])  # keys of JSON are texts

_other = table("placements", column("id"), column("ended_at"), column("leaving")).alias("other")
_LEFT = or_(_other.c.ended_at.is_not(None), _other.c.leaving.is_not(None))


class BaseModel(Base):
    """A row of the admin's allow-list of base models."""

    __tablename__ = "base_models"

    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    source: Mapped[str] = mapped_column(Text)  # a folder that every node has, hf://organisation/name, or storage://name
    revision: Mapped[str] = mapped_column(String(64))  # sha256 over its safetensors files
    architecture: Mapped[str] = mapped_column(String(64))
    model_type: Mapped[str | None] = mapped_column(String(64))  # from its config.json; null: allowed before this column existed
    parameters: Mapped[Big]
    max_position: Mapped[int]
    enabled: Mapped[bool] = mapped_column(default=True)
    created_at: Mapped[Now]
    commit: Mapped[str | None] = mapped_column(String(40))  # of the hub's repository; null: of no repository
    license: Mapped[str | None] = mapped_column(String(128))  # as the hub tells it
    gated: Mapped[bool] = mapped_column(
        default=False, server_default=text("false")
    )  # open to accounts alone that accepted its terms
    template_kind: Mapped[str | None] = mapped_column(String(16))  # of TemplateKind; null: nobody could tell


class BaseModelFile(Base):
    """A file of a base that nodes fetch. Those that are no weights are objects in storage, and all of one with a BaseCopy."""

    __tablename__ = "base_model_files"

    base_model: Mapped[str] = mapped_column(ForeignKey("base_models.name", ondelete="CASCADE"), primary_key=True)
    path: Mapped[str] = mapped_column(String(255), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[Big]


class BaseCopy(ClaimedRow, Base):
    """The files of a base in storage, from which nodes fetch it once it is `stored`. One that an admin uploaded is so at once;
    one of the hub is copied in the background. `status`: copying, stored or failed."""

    __tablename__ = "base_copies"

    base_model: Mapped[str] = mapped_column(ForeignKey("base_models.name", ondelete="CASCADE"), primary_key=True)
    received_bytes: Mapped[Big] = mapped_column(default=0, server_default="0")


class Node(Base):
    __tablename__ = "nodes"

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(63), unique=True)
    boot_id: Mapped[str] = mapped_column(String(64))
    status: Mapped[str] = mapped_column(String(16))  # ready or lost
    devices: Mapped[list[dict[str, object]]] = mapped_column(CheckedJson(_DEVICES, UnreadList))  # a Device message each
    versions: Mapped[dict[str, str]] = mapped_column(CheckedJson(_VERSIONS, UnreadDict))
    credential_hash: Mapped[bytes] = mapped_column(LargeBinary)
    desired_version: Mapped[Big] = mapped_column(default=0)
    tokens_per_second: Mapped[dict[str, float]] = mapped_column(
        CheckedJson(_RATES, UnreadDict), default=dict
    )  # measured, by base model
    joined_at: Mapped[Now]
    heartbeat_at: Mapped[Now]
    drained_at: Mapped[At | None]  # takes no new placements since then; survives reboots
    protocol: Mapped[int] = mapped_column(default=1, server_default="1")
    # null: not reported (contract)
    capabilities: Mapped[list[str] | None] = mapped_column(CheckedJson(_TEXTS, UnreadList, none_as_null=True))
    applied_version: Mapped[Big | None]  # of its desired state, as it reports,
    applied_at: Mapped[At | None]  # and when it applied that
    behind_since: Mapped[At | None]  # since when it has applied an older version than the newest
    losing: Mapped[list[str]] = mapped_column(
        CheckedJson(_TEXTS, UnreadList), default=list, server_default=text("'[]'")
    )  # tasks lost here in a row
    proved_at: Mapped[At | None]  # when a placement here last saved a checkpoint or ended a job
    rests_until: Mapped[At | None]  # takes no placements before then
    stopping_since: Mapped[At | None] = mapped_column()  # its worker said that it stops: it takes nothing until it registers
    removed_at: Mapped[At | None]  # from the list, while it was away; null again once it registers
    quarantined_at: Mapped[At | None]
    quarantine_reason: Mapped[str | None] = mapped_column(Text)
    # by device index: executors lost on it since a placement there last saved a checkpoint or ended a job
    device_losses: Mapped[dict[str, int]] = mapped_column(
        CheckedJson(_LOSSES, UnreadDict), default=dict, server_default=text("'{}'")
    )
    waits_for: Mapped[str | None] = mapped_column(Text)  # room on its disk, as its last heartbeat says in a sentence,
    waits_since: Mapped[At | None]  # and since when

    # on its disk, by content; null: not reported
    bases: Mapped[list[str] | None] = mapped_column(CheckedJson(_TEXTS, UnreadList, none_as_null=True))
    base_rate: Mapped[float | None]  # bytes per second at which it fetched bases, as it measured

    # ready; lost once its heartbeats were missed; stopped where its worker had said before that it stops
    presence: Mapped[str] = column_property(
        case((and_(status != "ready", stopping_since.is_not(None)), "stopped"), else_=status)
    )

    @property
    def device_type(self) -> str:
        """The type of its devices, which are all of one."""
        return str(self.devices[0]["type"]) if self.devices else "unknown"

    @property
    def unreadable(self) -> tuple[str, ...]:
        """The columns that cannot be read; of a heartbeat's node, which is read in parts, of those."""
        return tuple(name for name in _CHECKED if isinstance(getattr(self, name), Unread))

    @property
    def takes_nothing_new(self) -> bool:
        """Whether an admin drains it, or its worker is being stopped."""
        return self.drained_at is not None or self.stopping_since is not None


_CHECKED = tuple(column.name for column in Node.__table__.columns if isinstance(column.type, CheckedJson))

# as SQL counts them, which does not look into each
NUMBER_OF_DEVICES: ColumnElement[int] = case(
    (func.jsonb_typeof(Node.devices) == "array", func.jsonb_array_length(Node.devices)), else_=0
)

# How nodes are locked: FOR NO KEY UPDATE. A report writes its placement more than once, and from the second time on Postgres
# checks its foreign keys, under FOR KEY SHARE. Two reports of one node would wait for each other's lock under FOR UPDATE.
NODE_LOCK: dict[str, Any] = {"key_share": True}


class JoinToken(Base):
    """Lets a node of this name register, once; or, where the name ends with *, any number whose names begin so. Stored only
    as its SHA-256."""

    __tablename__ = "join_tokens"

    id: Mapped[Id]
    node_name: Mapped[str] = mapped_column(String(63))
    hash: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[Now]
    expires_at: Mapped[At]
    used_at: Mapped[At | None]  # the last time

    __table_args__ = (UniqueConstraint("hash", "node_name"),)


class Placement(Base):
    """One task on one node's devices. Live while `ended_at` is null; `lease_until` is on the database's clock.

    A placement that is `leaving` gets no lease renewals: the rest of its lease is its grace period.
    """

    __tablename__ = "placements"

    id: Mapped[Id]
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), index=True)
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"), index=True)
    device_indexes: Mapped[list[int]] = mapped_column(ARRAY(Integer))
    device_type: Mapped[str | None] = mapped_column(Text)  # as it was placed; null: placed by an earlier version, see its node
    fence: Mapped[Big]
    last_seq: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[Now]
    acknowledged_at: Mapped[At | None]
    heartbeat_at: Mapped[At | None]
    waits_for: Mapped[str | None] = mapped_column(Text)  # room on the node's disk, as the last heartbeat says in a sentence
    # how far the fetching, then the loading, of its base is, as the last heartbeat says
    loading: Mapped[str | None] = mapped_column(Text)
    lease_until: Mapped[At]
    expected_seconds: Mapped[float | None]  # of remaining work, as the plan estimated it
    leaving: Mapped[str | None] = mapped_column(String(16))  # a RequeueReason: it was asked to save its jobs and leave
    leave_detail: Mapped[str | None] = mapped_column(Text)
    promised_to: Mapped[str | None] = mapped_column(String(40))  # the task for which its GPUs were reclaimed
    waited_seconds: Mapped[float | None]  # of its task, since the task was last queued
    expected_end: Mapped[At | None]  # by the last plan, with its prediction interval
    expected_low: Mapped[At | None]
    expected_high: Mapped[At | None]
    beside: Mapped[int] = mapped_column(default=0, server_default="0")  # other tasks on its executor, by the last plan
    max_slowdown: Mapped[float | None]  # most times slower than alone that sharing may make it; null: it shares with nobody
    slowdown: Mapped[float | None] = mapped_column()  # the same as its worker measured it last,
    slowdown_beside: Mapped[list[str] | None] = mapped_column(ARRAY(Text))  # beside these placements; null: unknown
    # null once one of them has ended or is asked to leave: it says nothing of those who stay. For sessions that see all tenants
    current_slowdown: Mapped[float | None] = column_property(
        case((~exists().where(_other.c.id == any_(slowdown_beside), _LEFT).correlate_except(_other), slowdown))
    )
    correction: Mapped[float | None]  # measured over predicted, once a bound was broken beside it
    ended_at: Mapped[At | None]
    end_reason: Mapped[str | None] = mapped_column(String(32))
    # sums over the throughput events
    steps: Mapped[Big] = mapped_column(default=0)
    tokens: Mapped[Big] = mapped_column(default=0)
    train_seconds: Mapped[float] = mapped_column(default=0.0)
    micro_batches: Mapped[Big] = mapped_column(default=0)
    forwards: Mapped[Big] = mapped_column(default=0)
    evaluation_tokens: Mapped[Big] = mapped_column(default=0)
    evaluation_seconds: Mapped[float] = mapped_column(default=0.0)
    gpu_seconds: Mapped[float] = mapped_column(default=0.0, server_default="0")  # of all devices; shared steps are divided
    # tokens discarded by the rewind that ended it (usage/usage_ledger.py); not billed
    rewound_tokens: Mapped[Big] = mapped_column(default=0, server_default="0")
    rewound_evaluation_tokens: Mapped[Big] = mapped_column(default=0, server_default="0")
    rewound_gpu_seconds: Mapped[float] = mapped_column(default=0.0, server_default="0")

    __table_args__ = (
        Index("uq_placements_live_task", "task_id", unique=True, postgresql_where=text("ended_at IS NULL")),
        Index("ix_placements_live_node", "node_id", postgresql_where=text("ended_at IS NULL")),
        Index("ix_placements_ended", "ended_at"),
        Index("ix_placements_node_ended", "node_id", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
        Index("ix_placements_promised", "promised_to", postgresql_where=text("promised_to IS NOT NULL")),
    )


# The GPU type that a placement used, in a query that joins it with its node.
PLACED_ON_TYPE: ColumnElement[str | None] = func.coalesce(Placement.device_type, Node.devices[0]["type"].astext)


class AnswerSession(Base):
    """A base on one device of a node, held to answer completions alone, under a lease and fence of its own. Live while
    `ended_at` is null. A task takes the device at once: `fleet/answer_sessions.py`."""

    __tablename__ = "answer_sessions"

    id: Mapped[Id]
    node_id: Mapped[str] = mapped_column(ForeignKey("nodes.id"))
    device_index: Mapped[int]
    base_model: Mapped[str] = mapped_column(String(128))
    base_revision: Mapped[str] = mapped_column(String(64))
    precision: Mapped[str] = mapped_column(String(16))
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))  # who asked first, and is counted for it
    dedicated: Mapped[bool]  # answers that tenant alone
    fence: Mapped[Big] = mapped_column(server_default="1")
    created_at: Mapped[Now]
    acknowledged_at: Mapped[At | None]
    lease_until: Mapped[At]
    used_at: Mapped[At]  # when a request was last given or at hand
    ended_at: Mapped[At | None]
    end_reason: Mapped[str | None] = mapped_column(Text)

    __table_args__ = (
        Index("uq_answer_sessions_live", "node_id", "device_index", unique=True, postgresql_where=text("ended_at IS NULL")),
        Index("ix_answer_sessions_tenant_id", "tenant_id"),
        Index("ix_answer_sessions_node_ended", "node_id", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
    )


class EndedAnswerSessions(Base):
    """Seconds of the answer sessions whose rows are removed, by base, so that the counter never falls."""

    __tablename__ = "ended_answer_sessions"

    base_model: Mapped[str] = mapped_column(String(128), primary_key=True)
    gpu_seconds: Mapped[float] = mapped_column(Double)  # for which they held a device


class SweptPlacements(Base):
    """Sums over the placements that the garbage collector has removed, by end reason, so that counters never fall."""

    __tablename__ = "swept_placements"

    end_reason: Mapped[str] = mapped_column(String(32), primary_key=True)
    placements: Mapped[Big]
    tokens: Mapped[Big]
    evaluation_tokens: Mapped[Big]
    steps: Mapped[Big]
    forwards: Mapped[Big]
    gpu_seconds: Mapped[float]  # of all devices
