"""Tables about tenants: keys, usage, quotas, services, the audit log. Values in, tables out."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from contract.gpu_counts import device_word
from contract.wording.duration_words import duration
from contract.wording.quota_words import quota_words
from motet.api.resources import (
    Amounts,
    AuditEntry,
    Invitation,
    Key,
    Me,
    Member,
    PriceList,
    Quotas,
    ServiceAccount,
    TaskUsage,
    Tenant,
    TrackingServer,
    Usage,
)
from motet.display.columns import Column, Columns
from motet.display.durations import ago, until


def usage_table(usage: Usage) -> RenderableType:
    """The month's tasks, then their sum, then what was asked beside them."""
    word = device_word(usage.device_types)
    columns = (
        Column("task"),
        Column("name", need=3, folds=True),
        Column("tokens", right=True),
        Column(f"{word} time", right=True),
        Column("saved tokens", need=2, right=True),
        Column(f"saved {word} time", need=1, right=True),
    )
    rows = [(task.task_id, _name(task), *_amounts(task)) for task in usage.data]
    heading = Text(f"{usage.start:%B %Y}", style="bold")
    rows.append(("all tasks", "", *_amounts(usage.total)))
    if (asked := usage.completions).requests:
        tokens = f"{asked.prompt_tokens + asked.completion_tokens:,}"
        rows.append(("completions", "", tokens, duration(asked.gpu_seconds), "", ""))
    return Group(heading, Columns(columns, rows), Text())


def _name(task: TaskUsage) -> str:
    return " ".join(filter(None, (task.name, "(deleted)" if task.deleted_at is not None else None)))


def _amounts(used: Amounts) -> tuple[str, str, str, str]:
    times = (duration(used.gpu_seconds), duration(used.saved_gpu_seconds))
    return f"{used.trained_tokens:,}", times[0], f"{used.saved_tokens:,}", times[1]


def quotas_table(quotas: Quotas, word: str) -> RenderableType:
    """`word`: what the fleet's devices are called."""
    columns = (Column("quota"), Column("used", right=True), Column("limit", right=True))
    found = [(words, getattr(quotas, name)) for name, words in quota_words(word).items()]
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


def tenants_table(tenants: Iterable[Tenant], word: str) -> RenderableType:
    """`word`: what the fleet's devices are called."""
    quotas = quota_words(word)
    limits = [Column(words, need=at + 2, right=True) for at, words in enumerate(quotas.values())]
    columns = (Column("tenant"), Column("name", folds=True), Column("weight", need=1, right=True), *limits)
    rows = []
    for tenant in tenants:
        given = [getattr(tenant.quotas, name) for name in quotas]
        rows.append((tenant.id, tenant.name, f"{tenant.weight:g}", *map(_limit, given)))
    return Columns(columns, rows)


def prices_table(prices: PriceList) -> RenderableType:
    columns = (Column("type", folds=True), Column("from"), Column(f"{prices.currency} an hour", right=True))
    rows = [(one.device_type, str(one.from_day), f"{one.per_hour:g}") for one in prices.data]
    if prices.default_per_hour is not None:
        rows.append(("others, and earlier days", "", f"{prices.default_per_hour:g}"))
    return Columns(columns, rows)


def audit_table(entries: Iterable[AuditEntry]) -> RenderableType:
    columns = (
        Column("when (UTC)"),
        Column("action"),
        Column("on"),
        Column("by", need=1, folds=True),
        Column("tenant", need=2),
        Column("request", need=3),
    )
    rows = [
        (f"{e.created_at:%Y-%m-%d %H:%M:%S}", e.action, "\n".join(e.targets), e.actor or e.key_id, e.tenant_id, e.request_id)
        for e in entries
    ]
    return Columns(columns, rows)


def me_table(me: Me) -> RenderableType:
    rows = [
        ("who", me.label or f"the key {me.key!r} ({me.key_id})"),
        ("tenant", f"{me.tenant} ({me.tenant_id})"),
        ("role", me.role or "none: a key of the tenant itself"),
        ("may", ", ".join(me.scopes)),
        ("until", until(me.expires_at) or "it is revoked"),
    ]
    if len(me.tenants) > 1:
        rows.append(("tenants", ", ".join(f"{one.name} ({one.role})" for one in me.tenants)))
    return Columns((Column(""), Column("", folds=True)), rows)


def members_table(members: Iterable[Member]) -> RenderableType:
    columns = (
        Column("member", folds=True),
        Column("role"),
        Column("id", need=2),
        Column("joined", need=1),
        Column("signed in"),
    )
    rows = [(one.email or one.name or "", one.role, one.user_id, ago(one.created_at), ago(one.signed_in_at)) for one in members]
    return Columns(columns, rows)


def invitation_words(made: Invitation) -> str:
    """What is said of a new invitation: its link, alone on its line, and whom it is for."""
    return f"{made.url}\n{made.role}: {made.email or 'whoever has the link'}, until {made.expires_at:%Y-%m-%d %H:%M} UTC"


def invitations_table(invitations: Iterable[Invitation]) -> RenderableType:
    columns = (Column("invitation"), Column("for", folds=True), Column("role"), Column("by", need=1), Column("ends"))
    rows = []
    for one in invitations:
        ends = "used" if one.accepted_at is not None else "taken back" if one.revoked_at is not None else until(one.expires_at)
        rows.append((one.id, one.email or "whoever has the link", one.role, one.invited_by, ends or "expired"))
    return Columns(columns, rows)


def service_accounts_table(accounts: Iterable[ServiceAccount]) -> RenderableType:
    columns = (Column("service account"), Column("name", folds=True), Column("role"), Column("made", need=1))
    return Columns(columns, [(one.id, one.name, one.role, ago(one.created_at)) for one in accounts])


def tracking_servers_table(servers: Iterable[TrackingServer]) -> RenderableType:
    columns = (
        Column("tracking server"),
        Column("name", folds=True),
        Column("type"),
        Column("address", need=2),
        Column("made", need=1),
    )
    return Columns(columns, [(one.id, one.name, one.type, one.url, ago(one.created_at)) for one in servers])
