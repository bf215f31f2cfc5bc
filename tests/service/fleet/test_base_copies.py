"""Bases in storage: copied from the hub in the background, handed to placements alone, swept once they are removed."""

import hashlib
import os
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from contract.compatibility.capabilities import HUB_BASES, STORED_BASES, understood
from contract.messages.placement_messages import BaseFile
from service.background.garbage_collection import KEPT_SECONDS, sweep
from service.database import claimed_rows
from service.database.engine import clock
from service.fleet.base_models.copies.base_copier import BaseCopier
from service.fleet.base_models.copies.copy_claims import CopyClaims
from service.fleet.models import BaseCopy
from service.http.problems import Unavailable
from service.storage.local_storage import LocalIncoming
from tests.hub.hub_process import MODEL, HubProcess, hub_process
from tests.service.fleet.scripted import ScriptedNode
from worker.api_client import PlacementLink
from worker.data.base_download import BaseDownloads, SourceRefuses
from worker.data.storage_source import StorageSource

NAME = "org/example"


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[HubProcess]:
    with hub_process(tmp_path_factory.mktemp("hub")) as found:
        found.add(NAME)
        yield found


@pytest.fixture(scope="module")
def settings(settings_for, database_url, tmp_path_factory, hub):
    return settings_for(database_url, tmp_path_factory.mktemp("service"), hf_endpoint=hub.url)


@pytest.fixture(autouse=True)
def anew(hub, admin, storage, monkeypatch, nothing_left) -> Iterator[None]:
    """Each test begins without the base, and with a hub that works; no time for another try comes by itself."""
    monkeypatch.setattr(claimed_rows, "WAITS", (timedelta(hours=3),) * len(claimed_rows.WAITS))
    monkeypatch.setattr("service.files.imports.download._PAUSE_SECONDS", 0.0)
    assert admin.delete(f"/v1/admin/models/{NAME}").status_code in (204, 404)
    for stored in list(storage.keys()):
        storage.delete(stored.sha256)
    yield
    hub.faults()


@pytest.fixture
def copier(dependencies) -> BaseCopier:
    return BaseCopier(dependencies.db, dependencies.storage, dependencies.settings)


def add(admin, **more: object) -> dict[str, object]:
    made = admin.post("/v1/models", json={"source": f"hf://{NAME}", **more})
    assert made.status_code == 201, made.text
    return made.json()


def copy_of(admin) -> dict[str, object] | None:
    return admin.get(f"/v1/models/{NAME}").json()["storage"]


def sha256_of(name: str) -> str:
    return hashlib.sha256((MODEL / name).read_bytes()).hexdigest()


def stored(admin, copier) -> None:
    assert add(admin, store=True)["storage"]["status"] == "copying"
    copier.work_off_due()
    assert copy_of(admin)["status"] == "stored"


def weights_asked(hub: HubProcess) -> list[str]:
    """The range of each request for the bytes of the weights, but those for their header."""
    asked = [line[1] for line in hub.requests if line[0].startswith("/cdn/") and line[0].endswith("model.safetensors")]
    return [range_ for range_ in asked if range_ != "bytes=0-131071"]


def able(new_node, *without: str) -> ScriptedNode:
    return new_node(said={"capabilities": sorted(understood() - set(without))})


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


def test_a_file_that_storage_lost_is_fetched_when_the_base_is_added_again(admin, copier, hub, storage):
    stored(admin, copier)
    storage.delete(sha256_of("model.safetensors"))
    assert add(admin)["storage"]["status"] == "stored", "nobody asked for a copy"
    before = len(weights_asked(hub))
    stored(admin, copier)
    assert storage.exists(sha256_of("model.safetensors"))
    stored(admin, copier)
    assert len(weights_asked(hub)[before:]) == 1, "what is there is not fetched"


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


def test_storage_that_damages_a_file_is_given_it_again(admin, copier, storage, database, monkeypatch):
    add(admin, store=True)
    whole = LocalIncoming.write
    monkeypatch.setattr(LocalIncoming, "write", lambda incoming, block: whole(incoming, block + b"!"))
    copier.work_off_due()
    told = copy_of(admin)
    assert (told["status"], told["attempts"], told["error"]["code"]) == ("copying", 1, "unavailable")
    assert "announced were" in told["error"]["detail"]
    monkeypatch.setattr(LocalIncoming, "write", whole)
    with database.begin() as session:
        session.get_one(BaseCopy, NAME).next_at = clock(session)
    copier.work_off_due()
    assert copy_of(admin)["status"] == "stored"


def test_a_cut_copy_goes_on_within_the_file_and_a_later_attempt_with_the_next_file(admin, copier, hub, storage):
    size = (MODEL / "model.safetensors").stat().st_size
    add(admin, store=True)
    before = len(weights_asked(hub))
    hub.faults(cut_after=size // 2 + 1, block=2**16)
    copier.work_off_due()
    assert copy_of(admin)["status"] == "stored"
    first, second = weights_asked(hub)[before:]
    assert 0 < int(second.removeprefix("bytes=").removesuffix("-")) < size
    assert first == "-", "from the beginning"


def test_a_hub_that_is_down_is_asked_again_later_and_what_came_is_kept(admin, copier, hub, storage, database):
    add(admin, store=True)
    storage.delete(sha256_of("model.safetensors"))
    hub.faults(down=True)
    copier.work_off_due()
    told = copy_of(admin)
    assert (told["status"], told["attempts"]) == ("copying", 1)
    assert told["next_attempt_at"] is not None
    assert "answers 503" in told["error"]["detail"]
    hub.faults()
    copier.work_off_due()
    assert copy_of(admin)["attempts"] == 1, "not before its time"
    with database.begin() as session:
        session.get_one(BaseCopy, NAME).next_at = clock(session)
    asked = len(hub.requests)
    copier.work_off_due()
    assert (copy_of(admin)["status"], copy_of(admin)["attempts"]) == ("stored", 1), "they count from the last file that came"
    fetched = {line[0].rpartition("/")[2] for line in hub.requests[asked:]}
    assert fetched == {"model.safetensors"}, "small files were there"


def test_wrong_bytes_fail_the_copy_in_words_and_nodes_ask_the_hub(admin, copier, hub, tenant, new_node, plan):
    add(admin, store=True)
    hub.faults(wrong=["model.safetensors"])
    copier.work_off_due()
    told = copy_of(admin)
    assert told["status"] == "failed"
    assert "sha256" in told["error"]["errors"][0]["message"]
    node, task = able(new_node), tenant.task(base_model=NAME)
    plan()
    assert not node.take(task["id"]).given.base.stored
    hub.faults()
    assert add(admin)["storage"]["status"] == "copying", "named again, it is tried again"


def test_a_copy_whose_process_died_is_anothers_after_its_claim(admin, copier, database):
    add(admin, store=True)
    claims = CopyClaims(database)
    dead = claims.take()
    assert dead is not None
    assert claims.take() is None, "it is claimed"
    with database.begin() as session:
        session.get_one(BaseCopy, NAME).claimed_until = clock(session)
    copier.work_off_due()
    claims.fail(dead, Unavailable("late"), again=False)
    assert (copy_of(admin)["status"], copy_of(admin)["attempts"]) == ("stored", 1)


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
