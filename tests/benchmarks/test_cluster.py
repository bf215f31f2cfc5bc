"""The load drill's parts in small: copied history is what the API shows, a scrape counts it, and a backup brings it back."""

from pathlib import Path

import httpx

from benchmarks.cluster.__main__ import SMALL, ended_task, restored, scraped
from benchmarks.cluster.history import fill
from benchmarks.cluster.list_times import list_times
from deploy.devstack.postgres_account import choose_account
from deploy.devstack.stack import postgres_of
from deploy.devstack.state_folder import State
from service.database.engine import Database
from service.metrics.ended_totals import fold
from tests.walk.running_stack import running_stack


def test_history_is_listed_counted_and_restored(tmp_path: Path) -> None:
    with running_stack(tmp_path / "state", workers=0) as motet:
        admin = httpx.Client(base_url=motet.url, headers={"Authorization": f"Bearer {motet.admin}"}, timeout=90)
        owner = postgres_of(State(motet.state), choose_account()).url()
        task_id, paths = ended_task(motet)
        filled = fill(owner, task_id, SMALL)
        assert filled["rows"]["jobs"] == SMALL.tasks * SMALL.jobs == filled["points"] / SMALL.points
        assert scraped(admin, owner) == {"tasks": True, "jobs": True}, "before the first fold every ended row is read"
        db = Database(motet.database_url, pool_size=1)
        fold(db)
        db.engine.dispose()
        assert scraped(admin, owner) == {"tasks": True, "jobs": True}
        rows = {row["list"]: row["rows"] for row in list_times(motet.http, admin, paths)}
        assert min(rows[name] for name in ("/v1/tasks", "/v1/files", "/v1/adapters", "/v1/audit", "/v1/admin/plans")) >= 100
        assert rows["/v1/webhooks/{webhook_id}/deliveries"] > rows["/v1/webhooks"] > 0
        assert restored(motet, tmp_path)[1]
