"""Bases in storage: handed to placements alone, fetched by nodes, swept once they are removed."""

import os
import time

import pytest

from contract.compatibility.capabilities import HUB_BASES, STORED_BASES
from contract.messages.placement_messages import BaseFile
from service.background.garbage_collection import KEPT_SECONDS, sweep
from tests.hub.hub_process import MODEL
from tests.service.fleet.base_copies.conftest import NAME, able, add, copy_of, sha256_of, stored
from worker.api_client import PlacementLink
from worker.data.base_download import BaseDownloads, SourceRefuses
from worker.data.storage_source import StorageSource


def test_a_base_is_copied_and_placements_are_told_to_fetch_it_from_storage(
    admin, copier, hub, storage, tenant, new_node, plan, server, tmp_path
):
    assert add(admin)["storage"] is None
    copier.work_off_due()
    assert not storage.exists(sha256_of("model.safetensors")), "nobody asked for a copy"
    node, task = able(new_node), tenant.task(base_model=NAME)
    plan()
    placement = node.take(task["id"])
    assert not placement.given.base.stored
    refused = placement.call("GET", f"objects/{sha256_of('model.safetensors')}")
    assert refused.json()["code"] == "base_object_lost", "of a base that is not kept, storage has no weights"

    told = add(admin, store=True)["storage"]
    whole = sum(file.bytes for file in placement.given.base.files)
    assert (told["status"], told["total_bytes"]) == ("copying", whole)
    copier.work_off_due()
    told = copy_of(admin)
    assert (told["status"], told["received_bytes"], told["error"]) == ("stored", whole, None)
    hub.faults(down=True)
    given = node.take(task["id"]).given
    assert (given.base.stored, given.base.identity) == (True, placement.given.base.identity)
    with PlacementLink(server.url) as link:
        downloads = BaseDownloads(StorageSource(link, given.placement_id, lambda: given.token))
        for file in given.base.files:
            downloads.fetch(file, tmp_path / file.path, lambda size: None)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in MODEL.iterdir() if path.name != "README.md"
    }


def test_what_is_there_of_a_file_is_not_fetched_again(admin, copier, tenant, new_node, plan, server, tmp_path):
    stored(admin, copier)
    node, task = able(new_node), tenant.task(base_model=NAME)
    plan()
    given = node.take(task["id"]).given
    (file,) = [file for file in given.base.files if file.path == "model.safetensors"]
    path, came = tmp_path / file.path, list[int]()
    path.write_bytes((MODEL / file.path).read_bytes()[: file.bytes // 2])
    with PlacementLink(server.url) as link:
        blocks = b"".join(link.base_file(given.placement_id, given.token, file.sha256, file.bytes // 2))
        assert len(blocks) == file.bytes - file.bytes // 2
        BaseDownloads(StorageSource(link, given.placement_id, lambda: given.token)).fetch(file, path, came.append)
    assert path.read_bytes() == (MODEL / file.path).read_bytes()
    assert sum(came) == file.bytes


def test_a_file_that_storage_lost_is_refused_in_words(admin, copier, tenant, new_node, plan, server, storage, tmp_path):
    stored(admin, copier)
    node, task = able(new_node), tenant.task(base_model=NAME)
    plan()
    given = node.take(task["id"]).given
    storage.delete(sha256_of("config.json"))
    (file,) = [file for file in given.base.files if file.path == "config.json"]
    with PlacementLink(server.url) as link, pytest.raises(SourceRefuses, match=r"storage does not hold config\.json"):
        BaseDownloads(StorageSource(link, given.placement_id, lambda: given.token)).fetch(
            file, tmp_path / "c", lambda size: None
        )


def test_a_node_goes_on_with_storage_once_the_base_is_no_longer_kept_and_gets_nothing_else(
    admin, copier, tenant, new_tenant, new_node, plan, storage
):
    stored(admin, copier)
    node, task = able(new_node), tenant.task(base_model=NAME)
    new_tenant().file()
    plan()
    placement = node.take(task["id"])
    assert add(admin, store=False)["storage"] is None
    got = placement.call("GET", f"objects/{sha256_of('model.safetensors')}")
    assert got.content == (MODEL / "model.safetensors").read_bytes()
    others = {one.sha256 for one in list(storage.keys())} - {sha256_of(path.name) for path in MODEL.iterdir()}
    assert {placement.call("GET", f"objects/{sha256}").json()["code"] for sha256 in others} == {"object_unknown"}


def test_nodes_of_before_fetch_a_base_of_the_hub_and_get_none_that_was_uploaded(
    admin, copier, tenant, new_node, plan, database
):
    stored(admin, copier)
    files = [
        {"path": path.name, "sha256": sha256_of(path.name), "bytes": path.stat().st_size}
        for path in MODEL.iterdir()
        if path.name != "README.md"
    ]
    assert admin.post("/v1/admin/model-files", json={"files": files}).json() == {"sha256": []}
    assert admin.post("/v1/admin/stored-models", json={"name": "ours", "files": files}).status_code == 201
    old = able(new_node, STORED_BASES)
    from_hub, uploaded = tenant.task(base_model=NAME), tenant.task(base_model="ours")
    plan()
    assert {placement.task_id for placement in old.desired().placements} == {from_hub["id"]}
    assert tenant.get(f"/v1/tasks/{uploaded['id']}").json()["waiting"]["code"] == "no_node_understands"
    other = able(new_node, HUB_BASES)
    plan()
    given = other.take(uploaded["id"]).given.base
    assert (given.source, given.stored, given.commit) == ("storage://ours", True, None)
    admin.post(f"/v1/tasks/{uploaded['id']}/cancel")
    assert admin.delete("/v1/admin/models/ours").status_code == 409
    for task in (from_hub, uploaded):
        tenant.post(f"/v1/tasks/{task['id']}/cancel")
    assert admin.delete("/v1/admin/models/ours").status_code == 204


def test_the_sweep_keeps_a_copied_base_and_takes_a_removed_one(admin, copier, dependencies, storage, tenant):
    def swept() -> set[str]:
        moment = time.time() - KEPT_SECONDS - 60
        for object_ in list(storage.keys()):
            os.utime(storage.path(object_.sha256), (moment, moment))
        sweep(dependencies.db, dependencies.storage)
        return {path.name for path in MODEL.iterdir() if storage.exists(sha256_of(path.name))}

    everything = {path.name for path in MODEL.iterdir() if path.name != "README.md"}
    stored(admin, copier)
    assert swept() == everything
    assert add(admin, store=False)["storage"] is None
    assert swept() == everything - {"model.safetensors"}, "what previews read stays"
    stored(admin, copier)
    task = tenant.task(base_model=NAME)
    refused = admin.delete(f"/v1/admin/models/{NAME}")
    assert (refused.status_code, refused.json()["code"]) == (409, "revision_in_use")
    tenant.post(f"/v1/tasks/{task['id']}/cancel")
    assert admin.delete(f"/v1/admin/models/{NAME}").status_code == 204
    assert admin.get(f"/v1/models/{NAME}").status_code == 404
    assert swept() == set()
    stored(admin, copier)
    assert swept() == everything


def test_a_file_of_a_base_names_what_it_is() -> None:
    with pytest.raises(ValueError, match="path"):
        BaseFile(path="../weights.safetensors", sha256="a" * 64, bytes=1)
