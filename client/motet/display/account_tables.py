"""Tables about tenants: keys, usage, quotas, services, the audit log. Values in, tables out."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from contract.gpu_counts import device_word
from contract.wording.duration_words import duration
from motet.api.resources import Amounts, AuditEntry, Key, Quotas, Tenant, Usage
from motet.display.columns import Column, Columns
from motet.display.durations import ago, until


def usage_table(usage: Usage) -> RenderableType:
    """The month's tasks, then their sum."""
    word = device_word(usage.device_types)
    columns = (
        Column("task"),
        Column("name", need=3, folds=True),
        Column("tokens", right=True),
        Column(f"{word} time", right=True),
        Column("saved tokens", need=2, right=True),
        Column(f"saved {word} time", need=1, right=True),
    )
    rows = [(task.task_id, task.name or "", *_amounts(task)) for task in usage.data]
    heading = Text(f"{usage.start:%B %Y}", style="bold")
    return Group(heading, Columns(columns, [*rows, ("all", "", *_amounts(usage.total))]), Text())


def _amounts(used: Amounts) -> tuple[str, str, str, str]:
    times = (duration(used.gpu_seconds), duration(used.saved_gpu_seconds))
    return f"{used.trained_tokens:,}", times[0], f"{used.saved_tokens:,}", times[1]


def quotas_table(quotas: Quotas) -> RenderableType:
    columns = (Column("quota"), Column("used", right=True), Column("limit", right=True))
    names = ("running_gpus", "queued_tasks", "stored_bytes", "month_tokens")
    found = [(name.replace("_", " "), getattr(quotas, name)) for name in names]
    return Columns(columns, [(name, f"{one.used:,}", _limit(one.limit)) for name, one in found])


def _limit(limit: int | None) -> str:
    return "none" if limit is None else f"{limit:,}"


def keys_table(keys: Iterable[Key]) -> RenderableType:
    columns = (
        Column("key"),
        Column("name", folds=True),
        Column("scopes", need=1),
        Column("made", need=3),
        Column("ends", need=2),
    )
    rows = []
    for key in keys:
        ends = "revoked" if key.revoked_at is not None else until(key.expires_at) or "never"
        rows.append((key.id, key.name, ", ".join(key.scopes), ago(key.created_at), ends))
    return Columns(columns, rows)


def services_table(services: Sequence[tuple[str, str, bool]]) -> RenderableType:
    """`services`: name, address, whether it is in use."""
    columns = (Column(""), Column("service"), Column("address", folds=True))
    return Columns(columns, [("*" if used else "", name, url) for name, url, used in services])


def tenants_table(tenants: Iterable[Tenant]) -> RenderableType:
    names = ("running_gpus", "queued_tasks", "stored_bytes", "month_tokens")
    limits = [Column(name.replace("_", " "), need=at + 2, right=True) for at, name in enumerate(names)]
    columns = (Column("tenant"), Column("name", folds=True), Column("weight", need=1, right=True), *limits)
    rows = []
    for tenant in tenants:
        given = [getattr(tenant.quotas, name) for name in names]
        rows.append((tenant.id, tenant.name, f"{tenant.weight:g}", *map(_limit, given)))
    return Columns(columns, rows)


def audit_table(entries: Iterable[AuditEntry]) -> RenderableType:
    columns = (
        Column("when"),
        Column("action"),
        Column("on"),
        Column("key", need=1),
        Column("tenant", need=2),
        Column("request", need=3),
    )
    rows = [
        (f"{e.created_at:%Y-%m-%d %H:%M:%S}", e.action, "\n".join(e.targets), e.key_id, e.tenant_id, e.request_id)
        for e in entries
    ]
    return Columns(columns, rows)
