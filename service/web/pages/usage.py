"""What the tenant used in a month, by task and by day, against its quotas; as a page and as CSV."""

import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from fastapi import Request, Response

from service.app_state import Config, SystemDb
from service.authentication import Db
from service.database.engine import Database
from service.tenants.api_keys import Principal
from service.usage import routes as usage_routes
from service.usage.usage_queries import usage_of
from service.web.page_route import pages
from service.web.rendering import render
from service.web.session.viewer import Looking
from service.web.views.usage_chart import day_bars

router = pages()

_COLUMNS = (
    *("id", "name", "created_at", "trained_tokens", "evaluation_tokens", "gpu_seconds", "rewound_tokens"),
    *("saved_tokens", "saved_gpu_seconds", "trained_rows"),
)


@router.get("/usage")
def show_usage(
    viewer: Looking,
    db: Db,
    system: SystemDb,
    settings: Config,
    request: Request,
    month: usage_routes.Month = None,
    cursor: usage_routes.Cursor = None,
) -> Response:
    used = usage_routes.get_usage(viewer.principal, db, settings, month, cursor, 50)
    return render(
        request,
        "usage.html",
        used=used,
        quotas=usage_routes.get_quotas(viewer.principal, db, system),
        bars=day_bars(used.start, used.end, ((one.day, one.trained_tokens, one.gpu_seconds) for one in used.days)),
        month=f"{used.start:%Y-%m}",
        months=list(_months(used.start)),
    )


def _months(shown: datetime) -> Iterator[str]:
    """The twelve months up to this one, and the one that is shown."""
    now = datetime.now(UTC)
    found = [divmod(now.year * 12 + now.month - 1 - back, 12) for back in range(12)]
    listed = [f"{year}-{number + 1:02}" for year, number in found]
    yield from sorted({*listed, f"{shown:%Y-%m}"}, reverse=True)


@router.get("/usage.csv")
def download_usage(viewer: Looking, db: Db, month: usage_routes.Month = None) -> Response:
    name = f"usage-{month or 'this-month'}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(_csv(db, viewer.principal, month), headers=headers, media_type="text/csv; charset=utf-8")


def _csv(db: Database, principal: Principal, month: str | None) -> str:
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow(_COLUMNS)
    with db.begin() as session:
        for row in session.execute(usage_of(principal, usage_routes.period_of(session, month))):
            lines.writerow([_plain(getattr(row, column)) for column in _COLUMNS])
    return text.getvalue()


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else usage_routes.plain_cell(value)
