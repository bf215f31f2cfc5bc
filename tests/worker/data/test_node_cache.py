"""What a node keeps between placements: found again by the task that comes back, apart by tenant, erased with the file."""

import os
import shutil
import threading
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

import pytest

from contract.messages.node_messages import NodeWelcome
from contract.messages.report_messages import Attached
from contract.model_revision import revision_of
from tests.worker.corpus import jsonl, rows
from tests.worker.inside import Inside
from tests.worker.placer import placer
from tests.worker.running_node import running
from worker.api_client import NodeLink
from worker.data import token_cache
from worker.data.node_cache import NodeCache
from worker.node.cache_upkeep import CacheUpkeep

SPACE = {"learning_rate": [1e-3], "rank": [4], "batch_size": [4]}
SHORT = {"max_steps": 4}


def downloads(fleet) -> list[str]:
    return [path for method, path, _ in fleet.requests if method == "GET" and "/files/" in path]


def streams(inside: Inside) -> list[Path]:
    return list(inside.settings.scratch.glob("tenants/*/files/*/streams/*/header.json"))


def test_a_task_that_comes_back_downloads_and_tokenises_nothing(fleet, placing, tmp_path, monkeypatch):
    first = placing(SPACE, training=SHORT).model_copy(update={"tenant_id": "t1"})
    inside = Inside(fleet, tmp_path)
    (one,) = inside.run(first)
    assert len(downloads(fleet)) == 1
    monkeypatch.setattr(token_cache, "tokenise", lambda *_: pytest.fail("its rows were tokens already"))
    back = first.model_copy(update={"placement_id": "back", "token": "token-back", "fence": 2})
    (again,) = Inside(fleet, tmp_path).run(back)
    assert len(downloads(fleet)) == 1
    assert again.curves == one.curves
    assert again.of(Attached) == one.of(Attached)


def test_tenants_share_nothing_of_equal_files(fleet, placing, tmp_path):
    inside = Inside(fleet, tmp_path)
    for tenant_id in ("t1", "t2"):
        inside.run(placing(SPACE, training=SHORT).model_copy(update={"tenant_id": tenant_id}))
    assert len(downloads(fleet)) == 2
    assert {path.relative_to(inside.settings.scratch).parts[1] for path in streams(inside)} == {"t1", "t2"}
    elsewhere = [path for path in inside.settings.scratch.glob("objects/*") if b"messages" in path.read_bytes()]
    assert elsewhere == [], "no rows lie outside the tenants' folders"


@pytest.fixture
def dated(tiny_base, tmp_path, fleet):
    """Places tasks on a base whose template writes the date."""
    folder = tmp_path / "dated"
    shutil.copytree(tiny_base.source, folder)
    template = folder / "chat_template.jinja"
    template.write_text("{{ strftime_now('%d %m %Y') }}" + template.read_text())
    return placer(fleet, tiny_base.model_copy(update={"source": str(folder), "revision": revision_of(folder)}))


def test_the_date_of_a_template_is_the_task_s_whenever_it_is_placed(fleet, dated, tmp_path, caplog):
    inside, created = Inside(fleet, tmp_path / "node"), datetime(2026, 5, 6, 23, 30, tzinfo=UTC)
    for moment in (created, created, created + timedelta(hours=1)):
        inside.run(dated(SPACE, training=SHORT).model_copy(update={"created_at": moment, "tenant_id": "t1"}))
    assert len(streams(inside)) == 2, "equal rows under another date are other tokens"
    assert "its template writes today" not in caplog.text
    inside.run(dated(SPACE, training=SHORT).model_copy(update={"tenant_id": "t1"}))
    assert "does not say when its task was created; its template writes today" in caplog.text


def test_a_deleted_file_is_erased_on_a_node_that_was_away_as_soon_as_it_is_back(fleet, placing, tmp_path):
    gone, stays = placing(SPACE, training=SHORT), placing(SPACE, rows(40, seed=9), training=SHORT)
    folder = tmp_path / "node"
    folder.mkdir()
    with running(fleet, folder):
        for placement in (gone, stays):
            fleet.place(placement.model_copy(update={"tenant_id": "t1"}))
        fleet.until(lambda: len(fleet.reported) == 2 and not fleet.desired)
    kept = NodeCache(folder / "node" / "tenants")
    assert set(kept.files()) == {("t1", one.train_file.sha256) for one in (gone, stays)}
    fleet.deleted.add(gone.train_file.sha256)
    asked = len(fleet.requests)
    with running(fleet, folder):
        fleet.until(lambda: any("cached-files" in path for _, path, _ in fleet.requests[asked:]))
        look = threading.Event()
        while any(gone.train_file.sha256 in name for _, *names in os.walk(folder) for name in chain(*names)):
            look.wait(0.02)  # nothing tells of it
    assert kept.files() == [("t1", stays.train_file.sha256)]


def test_a_node_asks_again_and_again_and_outlives_refusals(fleet, tmp_path, caplog):
    cache = NodeCache(tmp_path)
    for sha256 in ("a" * 64, "b" * 64):
        cache.file("t1", sha256).content.keep(lambda path: path.write_bytes(jsonl(rows(3))), name=sha256)
    welcome = NodeWelcome(node_id="node_1", credential="c", stream="s", heartbeat_seconds=1.0, lease_seconds=2.0)
    with NodeLink(fleet.url) as link:
        fleet.down = True
        upkeep = CacheUpkeep(link, welcome, cache, tmp_path / "executors", seconds=0.02)
        fleet.until(lambda: sum(status == 503 for _, _, status in fleet.requests) >= 3)
        fleet.down = False
        fleet.until(lambda: any(status == 200 for _, _, status in fleet.requests))
        told = [record for record in caplog.records if "deleted files cannot be asked for" in record.message]
        assert len(told) == 1, "an outage is told once"
        assert len(cache.files()) == 2, "nobody deleted them"
        fleet.deleted.add("a" * 64)
        asked = len(fleet.requests)
        fleet.until(lambda: len(fleet.requests) >= asked + 3)
        upkeep.close()
    assert cache.files() == [("t1", "b" * 64)]
