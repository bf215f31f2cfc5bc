"""The cluster page draws the bases that are held for who asks them, and names no tenant. Without a browser."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from service.fleet.answer_sessions import TAKEN
from service.fleet.models import AnswerSession
from tests.service.web.test_isolation import signed_in


@pytest.fixture
def sessions(database, nothing_left, node, new_tenant, small_model):
    """Of another tenant: one that lives on the first device; on the second one that gave way, and one that failed."""
    now, other = datetime.now(UTC), new_tenant()
    with database.begin() as session:
        for device, began, ended, why in (
            (0, 10, None, None),
            (1, 50, 40, TAKEN),
            (1, 30, 20, "the executor (pid 7) ended with -9"),
            (1, 300, 200, "nobody asked for a while"),
        ):
            session.add(
                AnswerSession(
                    id=f"answers_{began}",
                    node_id=node.id,
                    device_index=device,
                    base_model=small_model,
                    base_revision="a" * 64,
                    precision="bf16",
                    tenant_id=other.tenant_id,
                    dedicated=False,
                    created_at=now - timedelta(minutes=began),
                    lease_until=now + timedelta(hours=1),
                    used_at=now,
                    ended_at=None if ended is None else now - timedelta(minutes=ended),
                    end_reason=why,
                )
            )
    return other


def bars(page: str) -> list[str]:
    """The titles of the bars of sessions."""
    return re.findall(r'<rect class="block answers"[^>]*><title>([^<]*)</title>', page)


def test_a_bar_says_that_requests_are_answered_and_for_whom_to_nobody(client, tenant, admin, sessions):
    browser, _ = signed_in(client, tenant.key)
    page = browser.get("/cluster").text
    found = bars(page)
    assert len(found) == 3, "those of the last hour"
    assert all(one.startswith("answers requests\nbase small in bf16\nsince ") for one in found)
    assert sorted(tuple(one.splitlines()[3:]) for one in found) == [
        (),
        ("a task takes its place at once",),
        (f"ended: {TAKEN}",),
    ]
    assert '<span class="swatch answers"></span>answers requests' in page
    assert sessions.tenant_id not in page
    assert "pid 7" not in page, "what a worker said is for admins"
    ruler, _ = signed_in(client, admin.key)
    assert any("pid 7" in one for one in bars(ruler.get("/cluster").text))


def test_without_sessions_there_is_no_legend_of_them(client, tenant, nothing_left, node):
    browser, _ = signed_in(client, tenant.key)
    page = browser.get("/cluster").text
    assert bars(page) == []
    assert "answers requests" not in page
