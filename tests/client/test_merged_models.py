"""`merged_models` of the client and `motet merge`: asked for, waited for, fetched whole, against a scripted server."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from motet import Client
from motet.api.errors import DownloadDamaged, MergedModelNotReady
from motet.cli import app
from typer.testing import CliRunner

from tests.client.scripted_server import MOMENT, Answer, Script, body

Served = Callable[[Script], Client]
WEIGHTS, README = b"weights", b"# of what it was made"
FILES = [
    {"path": path, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    for path, content in (("README.md", README), ("model.safetensors", WEIGHTS))
]
MERGED: dict[str, Any] = {
    "id": "merged_1",
    "adapter_id": "adapter_1",
    "base_model": "b",
    "base_revision": "r",
    "status": "queued",
    "files": [],
    "bytes": 14,
    "max_shard_bytes": 5_000_000_000,
    "waits_for": "each node that can merge it is merging already",
    "created_at": MOMENT,
}


def answer(status: str = "queued", code: int = 200, **changes: Any) -> Answer:
    return code, {}, body(**MERGED | changes | {"status": status})


READY = answer("ready", files=FILES, expires_at=MOMENT)
ASKED = answer(code=201)


def test_asked_for_waited_for_and_fetched(served: Served, tmp_path: Path) -> None:
    script = Script(ASKED, answer(), READY, READY, (200, {}, README), (200, {}, WEIGHTS))
    client = served(script)
    made = client.merged_models.create("adapter_1", max_shard_bytes=10**6)
    assert json.loads(script.bodies[0]) == {"adapter_id": "adapter_1", "max_shard_bytes": 10**6}
    assert client.merged_models.wait(made.id).files[1].path == "model.safetensors"
    folder = client.merged_models.download(made.id, tmp_path / "model")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"README.md": README, "model.safetensors": WEIGHTS}
    assert script.asked[-1] == "GET /v1/merged-models/merged_1/files/model.safetensors"


def test_what_is_not_ready_or_damaged_leaves_nothing(served: Served, tmp_path: Path) -> None:
    with pytest.raises(MergedModelNotReady, match="merged_1 could not be merged: no matrix"):
        served(Script(answer("failed", error="no matrix"))).merged_models.wait("merged_1")
    with pytest.raises(MergedModelNotReady, match=r"is queued after 0 s: each node"):
        served(Script(answer())).merged_models.wait("merged_1", timeout=0)
    with pytest.raises(MergedModelNotReady, match="merged_1 is queued; wait until it is ready"):
        served(Script(answer())).merged_models.download("merged_1", tmp_path / "model")
    with pytest.raises(DownloadDamaged, match=r"README\.md of merged_1 arrived damaged"):
        served(Script(READY, (200, {}, b"x"))).merged_models.download("merged_1", tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_the_commands(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(script: Script, *words: str) -> str:
        monkeypatch.setenv("MOTET_API_URL", served(script).api_url)
        monkeypatch.setenv("MOTET_API_KEY", "mk_1")
        ran = CliRunner().invoke(app, list(words))
        assert ran.exit_code == 0, ran.output
        return ran.output

    merging = Script(ASKED, READY, READY, (200, {}, README), (200, {}, WEIGHTS))
    assert "merged_1 is in" in run(merging, "merge", "adapter_1", "-o", str(tmp_path / "model"))
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == WEIGHTS
    taken = Script()
    monkeypatch.setenv("MOTET_API_URL", served(taken).api_url)
    refused = CliRunner().invoke(app, ["merge", "adapter_1", "-o", str(tmp_path / "model")])
    assert "exists and is not an empty folder" in str(refused.exception)
    assert taken.asked == [], "a model that cannot be kept is not merged"
    assert json.loads(run(Script(ASKED), "merge", "adapter_1", "--no-wait", "--json"))["status"] == "queued"
    page = (200, {}, body(object="list", data=[MERGED], next_cursor=None))
    assert "merged_1" in run(Script(page), "merged")
    fetched = Script(READY, (200, {}, README), (200, {}, WEIGHTS))
    assert "merged_1 is in" in run(fetched, "download", "merged_1", "-o", str(tmp_path / "again"))
    deleted = Script((204, {}, b""))
    assert "merged_1 is deleted" in run(deleted, "delete", "merged_1")
    assert deleted.asked == ["DELETE /v1/merged-models/merged_1"]
