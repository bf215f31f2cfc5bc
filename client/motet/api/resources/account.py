"""What a tenant used and may have, its keys, the audit log, and tenants as admins see them."""

from datetime import date, datetime

from pydantic import Field

from contract.strict import Message


class Amounts(Message):
    """Tokens and GPU seconds. What rewinds took back is told apart and not billed."""

    trained_tokens: int = 0
    evaluation_tokens: int = 0
    gpu_seconds: float = 0.0
    rewound_tokens: int = 0
    saved_tokens: int = 0
    saved_gpu_seconds: float = 0.0
    cost: float | None = None  # of the GPU seconds; None where some of them have no price


class TaskUsage(Amounts):
    """What one task used in the month."""

    task_id: str
    name: str | None = None
    created_at: datetime
    deleted_at: datetime | None = None  # since then the task is gone; its use stays billed
    trained_rows: int = 0


class CompletionAmounts(Message):
    """What bases and adapters were asked, beside the tasks; its tokens count towards the quota `month_tokens`."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    gpu_seconds: float = 0.0


class Usage(Message):
    """What the tenant's tasks used within a month, and what was asked."""

    start: datetime
    end: datetime
    device_types: list[str] = Field(default=[])  # that the month's tasks ran on
    total: Amounts
    currency: str = ""
    completions: CompletionAmounts = Field(default=CompletionAmounts())
    data: list[TaskUsage] = Field(default=[])


class Quota(Message):
    """A limit (None: there is none) and what is used of it."""

    limit: int | None = None
    used: int = 0


class Quotas(Message):
    """The tenant's quotas."""

    running_gpus: Quota
    queued_tasks: Quota
    stored_bytes: Quota
    month_tokens: Quota


class Price(Message):
    """What an hour of one GPU of a type costs from a day on, in UTC."""

    device_type: str
    from_day: date
    per_hour: float
    currency: str


class PriceList(Message):
    """All prices that were set, by type and day. `default_per_hour` is that of other types; None: they have none."""

    currency: str
    default_per_hour: float | None = None
    data: list[Price]


class Key(Message):
    """An API key; `secret` is the key itself, in the answer that makes it alone."""

    id: str
    tenant_id: str
    name: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    requests_per_minute: int | None = None
    role: str | None = None  # of a member's or service account's key
    user_id: str | None = None
    service_account_id: str | None = None
    secret: str | None = None


class SignInLink(Message):
    """A link that signs a browser in to the dashboard, once."""

    url: str
    expires_at: datetime


class AuditEntry(Message):
    """Who did what: `action` is the operation's id in openapi.yaml."""

    id: str
    tenant_id: str
    key_id: str
    user_id: str | None = None
    actor: str | None = None  # the member's address, or the service account's name
    action: str
    targets: list[str] = Field(default=[])
    request_id: str
    created_at: datetime


class QuotaLimits(Message):
    """A tenant's limits; None is no limit."""

    running_gpus: int | None = None
    queued_tasks: int | None = None
    stored_bytes: int | None = None
    month_tokens: int | None = None


class Tenant(Message):
    """A tenant as admins see it."""

    id: str
    name: str
    weight: float = 1.0
    max_slowdown: float | None = None  # default bound of its tasks beside others
    quotas: QuotaLimits = QuotaLimits()
    created_at: datetime


class JoinToken(Message):
    """Lets one node join under one name, once; or where the name ends with * (`reusable`) any number whose names begin so,
    until it expires. `secret` is shown in the answer that makes it alone."""

    id: str
    node_name: str
    reusable: bool = False
    expires_at: datetime
    used_at: datetime | None = None
    secret: str | None = None
