"""What a tenant's completions may take: requests at once, tokens a minute, the month's tokens. Counted from rows.

Checks of one tenant wait for each other, so that together they stay within the limits.
"""

from datetime import date, timedelta

from sqlalchemy import case, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from service.completions.errors import TooManyCompletions
from service.completions.models import ENDED, CompletionRequest
from service.settings import Settings
from service.tenants.api_keys import Principal
from service.tenants.models import Tenant
from service.tenants.tenant_scope import scoped
from service.usage.models import CompletionUsage
from service.usage.quotas import QuotaExceeded
from service.usage.usage_queries import month_of, used_tokens

_SOON, _MINUTE = 2, 60  # seconds until another try may succeed


def check(session: Session, settings: Settings, principal: Principal, tokens: int) -> None:
    """Raise TooManyCompletions or QuotaExceeded if the tenant may not ask for `tokens` more now. Holds a lock until the
    transaction ends."""
    session.execute(text("SELECT pg_advisory_xact_lock(hashtextextended(:tenant, 2))"), {"tenant": principal.tenant_id})
    row, now = CompletionRequest, func.clock_timestamp()
    open_ = (row.state != ENDED) & (row.asker_until > now)
    spent = case((row.state == ENDED, row.prompt_tokens + row.completion_tokens), else_=row.reserved_tokens)
    recent = row.created_at > now - timedelta(seconds=_MINUTE)
    counts = select(func.count().filter(open_), func.coalesce(func.sum(spent).filter(recent), 0))
    kept = row.created_at > now - timedelta(seconds=settings.completion_seconds + _MINUTE)  # older ones have ended
    at_once, used = session.execute(scoped(counts.where(kept), row, principal)).one()
    if at_once >= settings.completion_requests_at_once:
        limit = settings.completion_requests_at_once
        raise TooManyCompletions.after(_SOON, f"The tenant has {at_once} completions under way, and may have {limit} at once.")
    if used + tokens > settings.completion_tokens_per_minute:
        limit = settings.completion_tokens_per_minute
        raise TooManyCompletions.after(
            _MINUTE,
            f"The tenant may use {limit} tokens a minute; {int(used)} are used, and this may take {tokens}; lower max_tokens.",
        )
    _check_month(session, principal)


def _check_month(session: Session, principal: Principal) -> None:
    limit = session.scalars(select(Tenant.month_tokens_quota).where(Tenant.id == principal.tenant_id)).one()
    if limit is not None:
        used = used_tokens(session, principal, month_of(session))
        if used >= limit:
            raise QuotaExceeded.of("month_tokens", limit, used, "the count resets on the first of the month")


def bill(session: Session, row: CompletionRequest, seconds: float, month: date) -> None:
    """Add a request's tokens to its tenant's month, once."""
    if row.billed or not row.prompt_tokens:
        return
    row.billed = True
    added = insert(CompletionUsage).values(
        tenant_id=row.tenant_id,
        month=month,
        base_model=row.base_model,
        adapter_id=row.adapter_id or row.job_id or "",
        requests=1,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        gpu_seconds=seconds,
    )
    summed = {
        name: getattr(CompletionUsage, name) + added.excluded[name]
        for name in ("requests", "prompt_tokens", "completion_tokens", "gpu_seconds")
    }
    session.execute(added.on_conflict_do_update(index_elements=list(CompletionUsage.__table__.primary_key), set_=summed))
