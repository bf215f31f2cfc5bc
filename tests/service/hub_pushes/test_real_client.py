"""The hub of these tests beside huggingface_hub's own client: what that uploads, and what it downloads of ours, is the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.hub.hub_process import MODEL, TOKEN, HubProcess
from tests.service.hub_pushes.pushing import asked, history, requests, seen, tree
from tests.service.sample_tasks import adapter, jobs_of

SCRIPT = """
import json, sys
from huggingface_hub import HfApi, snapshot_download
endpoint, token, task, name, folder = sys.argv[1:]
if task == "upload":
    api = HfApi(endpoint, token)
    api.create_repo(name, private=True, exist_ok=True)
    print(json.dumps(api.upload_folder(repo_id=name, folder_path=folder).oid))
else:
    print(json.dumps(snapshot_download(name, endpoint=endpoint, token=token, local_dir=folder)))
"""


def client(hub: HubProcess, task: str, name: str, folder: Path, home: Path) -> str:
    """What huggingface_hub gives back, in a process of its own, since it reads its settings once. The hub has no xet."""
    environment = os.environ | {"HF_HUB_DISABLE_XET": "1", "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", SCRIPT, hub.url, TOKEN, task, name, str(folder)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found: str = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def peft_folder(tmp_path_factory) -> Path:
    """A LoRA adapter of the example's base, as PEFT saves it, whose B is not zero."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    made = peft.get_peft_model(base, peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    folder = tmp_path_factory.mktemp("adapter")
    made.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    return folder


@pytest.mark.parametrize("part_bytes", [None, 100_000])
def test_what_we_push_is_what_huggingface_hub_uploads_and_downloads(
    tenant, hub, courier, database, storage, peft_folder, tmp_path, part_bytes
):
    files = {path.name: path.read_bytes() for path in peft_folder.iterdir()}
    with database.begin() as session:
        adapter_id = adapter(session, storage, jobs_of(session, tenant.task()["id"])[0], files).id
    theirs, ours = f"org/theirs-{part_bytes}", f"org/ours-{part_bytes}"
    for one in (hub.folder / "lfs").glob("*"):  # which the hub would not ask for again
        one.unlink()
    hub.faults(part_bytes=part_bytes)
    made = asked(tenant, adapter_id, ours, base_model="org/base")
    before = len(hub.requests)
    courier.work_off_due()
    assert seen(tenant, made)["error"] is None
    assert len(requests(hub, before, "/lfs/part/" if part_bytes else "/lfs/put/")) >= 1

    folder = tmp_path / "ours"
    client(hub, "download", ours, folder, tmp_path / "home")
    got = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert {name: got[name] for name in files} == files
    assert got.keys() == {*files, "README.md"}
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    loaded = peft.get_peft_model_state_dict(peft.PeftModel.from_pretrained(base, folder))
    again = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    expected = peft.get_peft_model_state_dict(peft.PeftModel.from_pretrained(again, peft_folder))
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)

    upload = tmp_path / "upload"
    upload.mkdir()
    for name, part in got.items():
        (upload / name).write_bytes(part)
    commit = client(hub, "upload", theirs, upload, tmp_path / "home")
    assert hub.held(theirs)["commits"]["main"] == commit
    assert hub.held(theirs)["private"] is hub.held(ours)["private"] is True
    assert tree(hub, theirs) == tree(hub, ours), "files, oids, and what is LFS"
    before = len(hub.requests)
    same = asked(tenant, adapter_id, theirs, base_model="org/base")
    courier.work_off_due()
    assert seen(tenant, same)["commit"] == commit, "theirs is known as ours"
    assert requests(hub, before, "/lfs/") == []
    assert len(history(hub, theirs)) == 2
