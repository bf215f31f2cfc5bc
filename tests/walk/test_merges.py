"""An adapter is merged into its base by real processes, one of which is killed on the way: what transformers then loads is
PEFT's own merge."""

import hashlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.walk.running_stack import BASE_MODEL, RunningStack, running_stack, stopped, unpacked, until
from tests.walk.test_completions import QUICK, start


@pytest.fixture(scope="module")
def motet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    with running_stack(tmp_path_factory.mktemp("motet"), **QUICK) as it:
        yield it


def merged(motet: RunningStack, merged_id: str) -> dict[str, Any]:
    answer = motet.http.get(f"/v1/merged-models/{merged_id}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["status"] != "failed", found
    return found


@pytest.mark.timeout(1200)
def test_a_killed_merge_goes_on_and_is_pefts(motet: RunningStack, tmp_path: Path) -> None:
    task = start(motet, motet.http, 20)
    motet.ended(task)
    adapter_id = motet.task(task)["winner"]["adapter_id"]
    asked = motet.http.post("/v1/merged-models", json={"adapter_id": adapter_id, "max_shard_bytes": 1_000_000})
    assert asked.status_code == 201, asked.text
    merged_id = asked.json()["id"]
    until(lambda: motet.below("worker", "worker.export"))
    (process,) = motet.below("worker", "worker.export")

    first: list[dict[str, Any]] = []

    def strike() -> bool:
        """It runs between two looks alone: it is not over before it is killed."""
        with stopped([process]):
            first.extend(merged(motet, merged_id)["files"])
            if first:
                os.kill(process, signal.SIGKILL)
            return bool(first)

    until(strike)
    until(lambda: merged(motet, merged_id)["status"] == "ready")
    said = merged(motet, merged_id)
    assert {file["path"] for file in first} < {file["path"] for file in said["files"]}, "it was killed on the way"
    (log,) = [motet.log(name) for name in motet.pids if name == "worker"]
    told = {file["path"]: log.read_text().count(f"{merged_id}: {file['path']} is stored") for file in said["files"]}
    assert max(told.values()) == 1, "and made nothing twice"
    silent = [path for path, count in told.items() if not count]
    assert len(silent) <= 1, "killed after it reported this one, maybe not yet answered, before that was in the log"

    folder = tmp_path / "merged"
    folder.mkdir()
    (tmp_path / "adapter").mkdir()
    for file in said["files"]:
        content = motet.http.get(f"/v1/merged-models/{merged_id}/files/{file['path']}", follow_redirects=True).content
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (file["sha256"], file["bytes"])
        (folder / file["path"]).write_bytes(content)
    assert said["bytes"] == sum(file["bytes"] for file in said["files"])
    adapter = unpacked(motet.http.get(f"/v1/tasks/{task}/adapter").content, tmp_path / "adapter")
    base = AutoModelForCausalLM.from_pretrained(BASE_MODEL, dtype=torch.float32)
    expected = peft.PeftModel.from_pretrained(base, adapter).merge_and_unload().to(torch.bfloat16).state_dict()
    found = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert AutoTokenizer.from_pretrained(folder).vocab == AutoTokenizer.from_pretrained(BASE_MODEL).vocab
    assert adapter_id in (folder / "README.md").read_text()
    until(lambda: not motet.below("worker", "worker.export"))
