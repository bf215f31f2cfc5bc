"""A trained adapter is pushed to the hub by real processes; the reconciler is killed while it sends, and again while the hub
commits: the hub has one commit, and PEFT loads it."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import peft
import psycopg
import torch
from transformers import AutoModelForCausalLM

from service.database.engine import driver_url
from tests.hub.hub_process import TOKEN, HubProcess, hub_process
from tests.service.hub_pushes.pushing import content, history, requests, tree
from tests.walk.running_stack import BASE_MODEL, RunningStack, running_stack, unpacked, until
from tests.walk.test_completions import QUICK, start

NAME = "org/winner"


def pushed(motet: RunningStack, push_id: str) -> dict[str, Any]:
    answer = motet.http.get(f"/v1/hub-pushes/{push_id}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["status"] != "failed", found
    return found


def kill_reconciler(motet: RunningStack) -> None:
    """Kill it, and let its claim run out as minutes later."""
    died = motet.pids["reconcile"]
    os.kill(died, signal.SIGKILL)
    until(lambda: motet.pids["reconcile"] != died)
    with psycopg.connect(driver_url(motet.database_url)) as connection:
        connection.execute("UPDATE hub_pushes SET claimed_until = now() WHERE status = 'open'")


def attempts(hub: HubProcess, words: str) -> int:
    return len(requests(hub, 0, words))


def test_a_killed_push_goes_on_and_is_committed_once(tmp_path: Path) -> None:
    with hub_process(tmp_path / "hub") as hub, running_stack(tmp_path / "state", HF_ENDPOINT=hub.url, **QUICK) as motet:
        task = start(motet, motet.http, 20)
        motet.ended(task)
        adapter_id = motet.task(task)["winner"]["adapter_id"]
        hub.faults(block=1000, slow_put=1.0)
        asked = motet.http.post("/v1/hub-pushes", json={"adapter_id": adapter_id, "repository": NAME, "token": TOKEN})
        assert asked.status_code == 201, asked.text
        push_id = asked.json()["id"]
        until(lambda: attempts(hub, "/lfs/put/"))
        assert pushed(motet, push_id)["status"] == "running"
        kill_reconciler(motet)
        hub.faults(late=["/commit/", 600])
        until(lambda: (hub.folder / NAME / "hub.json").exists() and len(history(hub, NAME)) == 2)
        assert pushed(motet, push_id)["status"] == "running", "the hub has committed and not answered"
        kill_reconciler(motet)
        hub.faults()
        until(lambda: pushed(motet, push_id)["status"] == "succeeded")
        done = pushed(motet, push_id)
        assert done["commit"] == hub.held(NAME)["commits"]["main"]
        assert (len(history(hub, NAME)), attempts(hub, "/commit/")) == (2, 1)

        folder, own = tmp_path / "pushed", tmp_path / "own"
        folder.mkdir()
        own.mkdir()
        for path in tree(hub, NAME):
            (folder / path).write_bytes(content(hub, NAME, path))
        archive = unpacked(motet.http.get(f"/v1/tasks/{task}/adapter", follow_redirects=True).content, own)
        for path in archive.iterdir():
            same = (folder / path.name).read_bytes().endswith(path.read_bytes())
            assert same, f"{path.name}, before which a README has the front matter alone"
        shutil.rmtree(archive)
        base = AutoModelForCausalLM.from_pretrained(BASE_MODEL, dtype=torch.float32)
        loaded = peft.get_peft_model_state_dict(peft.PeftModel.from_pretrained(base, folder))
        assert any(bool(tensor.abs().sum()) for name, tensor in loaded.items() if "lora_B" in name)
        logs = "".join(path.read_text() for path in (tmp_path / "state").rglob("*.log"))
        assert push_id in logs
        assert TOKEN not in logs
