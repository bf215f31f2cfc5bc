"""The process of a merge inside the test's own, against a fleet API over real HTTP."""

import errno
import hashlib
import json
import threading

from contract.messages.adapter_manifest import AdapterFile
from contract.messages.placement_messages import MergeWork
from tests.worker.fleet import JOIN_TOKEN
from worker.adapters import warm_start
from worker.api_client import PlacementLink
from worker.boot_clock import boot_now
from worker.data.node_cache import NodeCache
from worker.export.merge_run import MergeProcess
from worker.pipe_messages import Merge, PlacementEnded
from worker.settings import Settings


def held(fleet, name: str, content: bytes) -> AdapterFile:
    file = AdapterFile(path=name, sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    fleet.objects[file.sha256] = content
    return file


def test_a_disk_that_does_not_give_the_adapter_back_ends_no_merge(fleet, tiny_base, tmp_path, monkeypatch):
    """Another node's may."""

    def read(*asked):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(warm_start, "read_tensors", read)
    config = json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]}).encode()
    adapter = [held(fleet, "adapter_config.json", config), held(fleet, "adapter_model.safetensors", bytes(64))]
    lease = {"placement_id": "merged_1", "fence": 1, "token": "token", "lease_seconds": 900.0, "device_indexes": []}
    work = MergeWork(**lease, base=tiny_base, tenant_id="tenant_1", adapter=adapter, max_shard_bytes=10**6, readme="")
    settings, told = Settings(api_url=fleet.url, join_token=JOIN_TOKEN, worker_dir=tmp_path, worker_device="cpu"), []
    with PlacementLink(fleet.url) as link:
        process = MergeProcess(settings, link, told.append)
        process.handle_command(Merge(placement=work, deadline=boot_now() + 900.0))
        process.run()
    assert not fleet.merge_reports
    (ended,) = [message for message in told if isinstance(message, PlacementEnded)]
    assert ended.lost
    assert "Input/output error" in ended.detail


def test_an_adapter_takes_the_room_of_cached_data(fleet, tiny_base, small_disk):
    adapter = [held(fleet, "adapter_config.json", b"{}"), held(fleet, "adapter_model.safetensors", bytes(2**20))]
    lease = {"placement_id": "merged_1", "fence": 1, "token": "token", "lease_seconds": 900.0, "device_indexes": []}
    work = MergeWork(**lease, base=tiny_base, tenant_id="tenant_1", adapter=adapter, max_shard_bytes=10**6, readme="")
    settings = Settings(api_url=fleet.url, join_token=JOIN_TOKEN, worker_dir=small_disk.folder, worker_device="cpu")
    cached = NodeCache(settings.scratch / "tenants").file("tenant_2", "f" * 64).content
    cached.keep(lambda path: path.write_bytes(bytes(7 * 2**20 + 2**19)), "f" * 64)
    with PlacementLink(fleet.url) as link:
        process = MergeProcess(settings, link, lambda message: None)
        process.handle_command(Merge(placement=work, deadline=boot_now() + 900.0))
        merging = threading.Thread(target=process.run, daemon=True)
        merging.start()
        fleet.until(lambda: fleet.merge_reports)
        merging.join()
    (report,) = fleet.merge_reports
    assert "the adapter" in report.error, "it was read"
    assert cached.find("f" * 64) is None
