"""What is kept of a merge and of its adapter, and when the collector takes it."""

import hashlib
from datetime import timedelta

from sqlalchemy import update

from service.background.garbage_collection import sweep
from service.background.retention import Retention
from service.merges.models import MergedModel
from tests.service.merges.conftest import FILES
from tests.service.merges.merging_node import SHARD, call, file, finish, pulse, report, upload


def test_deletion_ends_a_merge_and_takes_what_was_stored(
    tenant, new_tenant, merge, merging_node, given, dependencies, storage, aged
):
    merged_id, other_id, node = merge(tenant), merge(tenant), merging_node()
    finish(node, given(node)[0])
    (other,) = given(node)
    assert upload(node, other, b"half of it") == 200
    assert report(node, other, files=[file("model-1.safetensors", b"half of it")]) == (204, None)
    stranger = new_tenant()
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/files/model.safetensors")):
        assert stranger.request(method, f"/v1/merged-models/{merged_id}{path}").status_code == 404
    aged()
    sweep(dependencies.db, storage)
    assert storage.exists(hashlib.sha256(SHARD).hexdigest())
    assert storage.exists(hashlib.sha256(b"half of it").hexdigest())
    for one in (merged_id, other_id):
        assert tenant.delete(f"/v1/merged-models/{one}").status_code == 204
        assert tenant.delete(f"/v1/merged-models/{one}").status_code == 404
    assert tenant.get("/v1/merged-models").json()["data"] == []
    assert node.leases(pulse(other)).leases == []
    assert node.desired().merges == []
    assert upload(node, other, b"more") == 409
    sweep(dependencies.db, storage)
    assert not storage.exists(hashlib.sha256(SHARD).hexdigest())
    assert not storage.exists(hashlib.sha256(b"half of it").hexdigest())


def test_it_expires_and_its_row_is_forgotten(tenant, merge, merging_node, given, dependencies, storage, database, aged):
    merged_id, node = merge(tenant), merging_node()
    finish(node, given(node)[0])
    with database.begin() as session:
        session.execute(update(MergedModel).values(expires_at=MergedModel.created_at))
    aged()
    sweep(dependencies.db, storage)
    assert tenant.get(f"/v1/merged-models/{merged_id}").status_code == 404
    assert not storage.exists(hashlib.sha256(SHARD).hexdigest())
    sweep(dependencies.db, storage, Retention(deleted=timedelta(0)))
    with database.begin() as session:
        assert session.get(MergedModel, merged_id) is None


def test_a_merge_keeps_the_adapters_files_until_it_has_ended(
    tenant, adapter_of, merging_node, given, dependencies, storage, aged
):
    adapter_id = adapter_of(tenant)
    merged_id = tenant.post("/v1/merged-models", json={"adapter_id": adapter_id}).json()["id"]
    task_id = tenant.get(f"/v1/adapters/{adapter_id}").json()["task_id"]
    tenant.post(f"/v1/tasks/{task_id}/cancel")
    assert tenant.delete(f"/v1/adapters/{adapter_id}").status_code == 204
    assert tenant.post("/v1/merged-models", json={"adapter_id": adapter_id}).json()["code"] == "adapter_deleted"
    aged()
    sweep(dependencies.db, storage)
    node = merging_node()
    (work,) = given(node)
    assert call(node, work, "GET", f"objects/{work.adapter[0].sha256}").content == FILES["adapter_config.json"]
    assert tenant.delete(f"/v1/merged-models/{merged_id}").status_code == 204
    sweep(dependencies.db, storage)
    assert not storage.exists(work.adapter[0].sha256)
