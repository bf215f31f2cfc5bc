"""A merge from the request to the files: who gets it, and what a node may do under its lease."""

from datetime import timedelta

import pytest
from sqlalchemy import update

from service.fleet.merges.merge_leases import ATTEMPTS, end_expired_merges
from service.merges import merge_starts
from service.merges.models import MergedModel
from tests.service.merges.conftest import FILES
from tests.service.merges.merging_node import SHARD, call, file, finish, lost, pulse, report, upload


def test_from_the_request_to_the_files(tenant, merge, merging_node, given):
    merged_id, shard = merge(tenant), b"a shard that no other test has uploaded"
    asked = tenant.get(f"/v1/merged-models/{merged_id}").json()
    assert (asked["status"], asked["files"], asked["bytes"]) == ("queued", [], 14_000_000)
    assert tenant.get("/v1/quotas").json()["stored_bytes"]["used"] >= 14_000_000
    node = merging_node()
    before = node.desired().version
    (work,) = given(node)
    assert node.desired().version > before, "the node is told"
    assert (work.placement_id, work.base.name, work.base.precision, work.stored) == (merged_id, "small", "bf16", [])
    assert asked["adapter_id"] in work.readme
    assert FILES["adapter_model.safetensors"] == call(node, work, "GET", f"objects/{work.adapter[1].sha256}").content
    assert call(node, work, "GET", f"objects/{'0' * 64}").json()["code"] == "object_unknown"
    assert report(node, work, files=[file("model.safetensors", shard)]) == (422, "invalid"), "nothing was uploaded"
    assert upload(node, work, shard) == 200
    for _ in range(2):  # a report whose answer was lost
        assert report(node, work, files=[file("model.safetensors", shard)]) == (204, None)
    running = tenant.get(f"/v1/merged-models/{merged_id}").json()
    assert (running["status"], running["files"]) == ("running", [file("model.safetensors", shard)])
    assert report(node, work, done=True) == (204, None)
    assert report(node, work, done=True) == (409, "fence_stale")
    ready = tenant.get(f"/v1/merged-models/{merged_id}").json()
    assert (ready["status"], ready["bytes"], ready["error"]) == ("ready", len(shard), None)
    assert ready["expires_at"] > ready["ended_at"] > ready["created_at"]
    got = tenant.get(f"/v1/merged-models/{merged_id}/files/model.safetensors")
    assert (got.content, got.headers["etag"]) == (shard, f'"{ready["files"][0]["sha256"]}"')
    missing = tenant.get(f"/v1/merged-models/{merged_id}/files/other")
    assert (missing.status_code, "model.safetensors" in missing.json()["detail"]) == (404, True)
    assert tenant.get("/v1/merged-models").json()["data"] == [ready]
    assert node.desired().merges == []


def test_an_older_worker_gets_none_and_a_node_one_at_a_time(tenant, merge, new_node, merging_node, given):
    first, second = merge(tenant), merge(tenant)
    old = new_node(said={"capabilities": ["sharing"]})
    assert given(old) == []
    assert "can merge small; upgrade a worker" in tenant.get(f"/v1/merged-models/{first}").json()["waits_for"]
    node = merging_node()
    (work,) = given(node)
    assert work.placement_id == first
    assert tenant.get(f"/v1/merged-models/{second}").json()["waits_for"] == "each node that can merge it is merging already"
    finish(node, work)
    assert [one.placement_id for one in given(node)] == [second]


def test_tenants_take_turns(tenant, new_tenant, merge, merging_node, given):
    mine = [merge(tenant) for _ in range(3)]
    theirs = merge(new_tenant())
    nodes = [merging_node(), merging_node()]
    given(nodes[0])
    assert {work.placement_id for node in nodes for work in node.desired().merges} == {mine[0], theirs}


def test_heartbeats_renew_and_a_lost_process_loses_nothing_stored(tenant, merge, merging_node, given, database, dependencies):
    merged_id, node = merge(tenant), merging_node()
    (work,) = given(node)
    (lease,) = node.leases(pulse(work)).leases
    assert (lease.placement_id, lease.fence, lease.token) == (merged_id, work.fence, work.token)
    assert node.leases(pulse(work, fence=work.fence - 1)).leases == []
    assert node.leases(pulse(work, progress_age=10_000)).leases == [], "it hangs"
    assert node.leases(pulse(work, progress_age=10_000, phase="loading")).leases != [], "it stores a file"
    assert node.leases(pulse(work, progress_age=100_000, phase="loading")).leases == [], "its disk hangs"
    assert upload(node, work, SHARD) == 200
    assert report(node, work, files=[file("model-1.safetensors", SHARD)]) == (204, None)
    lost(node, work)
    assert node.desired().merges == []
    assert report(node, work, done=True) == (409, "fence_stale")
    assert upload(node, work, b"late") == 409
    waiting = tenant.get(f"/v1/merged-models/{merged_id}").json()
    assert (waiting["status"], waiting["error"]) == ("queued", "killed")
    (again,) = given(node)
    assert (again.fence, [kept.path for kept in again.stored]) == (work.fence + 1, ["model-1.safetensors"])
    assert report(node, work, done=True) == (409, "fence_stale"), "its token is of the attempt before"
    lost(node, work)
    assert len(node.desired().merges) == 1, "the loss of an older fence changes nothing"

    with database.begin() as session:
        session.execute(update(MergedModel).values(lease_until=MergedModel.created_at))
    assert report(node, again, done=True) == (409, "fence_stale"), "its lease is over"
    end_expired_merges(dependencies)
    assert tenant.get(f"/v1/merged-models/{merged_id}").json()["error"] == "its node did not renew its lease"
    assert given(node)[0].fence == work.fence + 2


def test_attempts_that_store_nothing_are_bounded(tenant, merge, merging_node, given):
    merged_id, node = merge(tenant), merging_node()
    for _ in range(ATTEMPTS):
        (work,) = given(node)
        lost(node, work, detail="out of memory")
    assert given(node) == []
    failed = tenant.get(f"/v1/merged-models/{merged_id}").json()
    assert (failed["status"], failed["bytes"]) == ("failed", 0)
    assert failed["error"] == f"given up after {ATTEMPTS} attempts; the last one: out of memory"


def test_a_full_disk_uses_up_no_attempt(tenant, merge, merging_node, given, database, dependencies):
    merged_id, node = merge(tenant), merging_node()
    wait = "model.safetensors waits for room in MOTET_WORKER_DIR"
    for _ in range(ATTEMPTS + 1):
        (work,) = given(node)
        assert node.leases(pulse(work)).leases != []
        assert node.leases(pulse(work, waits_for=wait)).leases == []
        assert tenant.get(f"/v1/merged-models/{merged_id}").json()["waits_for"] == wait
        with database.begin() as session:
            session.execute(update(MergedModel).values(lease_until=MergedModel.created_at))
        end_expired_merges(dependencies)
    waiting = tenant.get(f"/v1/merged-models/{merged_id}").json()
    assert (waiting["status"], waiting["error"]) == ("queued", wait)
    (work,) = given(node)
    node.leases(pulse(work, waits_for=wait))
    node.leases(pulse(work))
    finish(node, work)
    assert tenant.get(f"/v1/merged-models/{merged_id}").json()["waits_for"] is None


def test_a_worker_that_stops_gives_back_what_it_has_not_taken_up_and_gets_none(
    tenant, merge, merging_node, given, database, dependencies
):
    first, second = merge(tenant), merge(tenant)
    node, other = merging_node(), merging_node()
    (held,) = given(node)
    (untaken,) = other.desired().merges
    node.leases(pulse(held))
    for one in (node, other):
        assert one.lost(reason="node_lost", detail="the worker stops", stopping=True).is_success
    assert ([work.placement_id for work in node.desired().merges], other.desired().merges) == ([first], [])
    with database.begin() as session:
        waiting = session.get_one(MergedModel, second)
        assert (waiting.status, waiting.attempts, waiting.fence) == ("queued", 0, untaken.fence)
    assert given(other) == []
    assert "none of the 0 nodes that are ready" in tenant.get(f"/v1/merged-models/{second}").json()["waits_for"]
    (again,) = given(other.reboot())
    assert (again.placement_id, again.fence) == (second, untaken.fence + 1)
    assert other.lost(reason="node_lost", detail="the worker stops", stopping=True).is_success
    assert other.desired().merges == [], "it has not taken up this fence either"


def test_merges_that_no_node_is_able_to_do_hide_no_others(
    tenant, new_tenant, merge, merging_node, given, database, monkeypatch
):
    monkeypatch.setattr(merge_starts, "_LOOKED_AT", 2)
    monkeypatch.setattr(merge_starts, "_UNABLE", timedelta(hours=3))  # not over before the next look, however slow it is
    unable = [merge(tenant), merge(new_tenant())]
    able, node = merge(tenant), merging_node()
    with database.begin() as session:
        session.execute(update(MergedModel).where(MergedModel.id.in_(unable)).values(base_revision="gone"))
    assert given(node) == []
    (work,) = given(node, pauses_over=False)
    assert work.placement_id == able
    assert "an admin can bring it back" in tenant.get(f"/v1/merged-models/{unable[0]}").json()["waits_for"]


@pytest.mark.parametrize("stopping", [False, True])
def test_a_worker_that_stops_costs_no_attempt(tenant, merge, merging_node, given, database, stopping):
    merged_id, node = merge(tenant), merging_node()
    (work,) = given(node)
    lost(node, work, reason="node_lost", stopping=stopping)
    with database.begin() as session:
        assert session.get_one(MergedModel, merged_id).attempts == (0 if stopping else 1)


def test_what_can_never_be_merged_fails_at_once(tenant, merge, merging_node, given):
    merged_id, node = merge(tenant), merging_node()
    (work,) = given(node)
    assert report(node, work, error="the adapter lacks a matrix") == (204, None)
    failed = tenant.get(f"/v1/merged-models/{merged_id}").json()
    assert (failed["status"], failed["error"], failed["ended_at"] is not None) == ("failed", "the adapter lacks a matrix", True)
    assert given(node) == []
