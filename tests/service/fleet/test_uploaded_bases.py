"""Bases that an admin uploads from a folder: sent once, checked, refused in words; by the clients and the command line."""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from motet import ApiError, AsyncClient, Client

from contract.model_revision import revision_of
from tests.hub.hub_process import MODEL
from tests.service.api import Caller, chat_rows
from tests.service.fleet.test_model_catalog import CONFIG, TEMPLATE, weights
from tests.service.live_server import Server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "sharded"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(CONFIG))
    (made / "tokenizer.json").write_text("{}")
    (made / "chat_template.jinja").write_text(TEMPLATE)
    (made / "model-1.safetensors").write_bytes(weights((2, 3), (5,)))
    (made / "model-2.safetensors").write_bytes(weights((4,)))
    named = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (made / "model.safetensors.index.json").write_text(json.dumps(named))
    (made / "train.py").write_text("raise SystemExit")
    (made / "pytorch_model.bin").write_bytes(b"pickle")
    return made


def described(folder: Path, *names: str) -> list[dict[str, object]]:
    contents = {name: (folder / name).read_bytes() for name in names}
    return [{"path": n, "sha256": hashlib.sha256(c).hexdigest(), "bytes": len(c)} for n, c in contents.items()]


def sent(admin: Caller, folder: Path, *names: str) -> list[dict[str, object]]:
    files = described(folder, *names)
    for file in files:
        put = admin.put(f"/v1/admin/model-files/{file['sha256']}", content=(folder / str(file["path"])).read_bytes())
        assert put.status_code == 204, put.text
    return files


def test_a_folder_is_uploaded_checked_and_previewed(admin, tenant, server: Server):
    with Client(server.url, admin.key, admin_key=admin.key) as client:
        made = client.admin.upload_model(MODEL, "uploaded")
    assert (made.name, made.revision, made.commit) == ("uploaded", revision_of(MODEL), None)
    assert made.storage is not None
    assert (made.storage.status, made.storage.received_bytes) == ("stored", made.storage.total_bytes)
    admin.post("/v1/admin/models", json={"name": "in-a-folder", "source": str(MODEL)})
    file = tenant.file(chat_rows(3))
    one, other = (
        tenant.post("/v1/files/preview", json={"file_id": file, "base_model": name}) for name in ("uploaded", "in-a-folder")
    )
    assert one.status_code == 200, one.text
    assert one.json()["rows"] == other.json()["rows"]


def test_asyncio_sends_the_same_and_what_is_there_is_not_sent_again(admin, server: Server, folder, storage):
    surplus = b"a pickle that no other test sends"
    (folder / "pytorch_model.bin").write_bytes(surplus)

    async def upload() -> str:
        async with AsyncClient(server.url, admin.key, admin_key=admin.key) as client:
            return (await client.admin.upload_model(folder, "sharded")).revision

    assert asyncio.run(upload()) == revision_of(folder)
    files = described(folder, "config.json", "tokenizer.json", "model-1.safetensors", "model-2.safetensors")
    assert admin.post("/v1/admin/model-files", json={"files": files}).json() == {"sha256": []}
    assert not storage.exists(hashlib.sha256(surplus).hexdigest()), "nothing else is sent"
    storage.delete(str(files[3]["sha256"]))
    assert admin.post("/v1/admin/model-files", json={"files": files}).json() == {"sha256": [files[3]["sha256"]]}
    assert asyncio.run(upload()) == revision_of(folder)


def test_a_licence_is_uploaded_also_an_empty_one_and_one_that_comes_later(admin, tenant, server: Server, tmp_path, storage):
    folder = tmp_path / "licensed"
    shutil.copytree(MODEL, folder)
    with Client(server.url, admin.key, admin_key=admin.key) as client:
        client.admin.upload_model(folder, "licensed")
        tenant.task(base_model="licensed")
        (folder / "LICENSE").write_text("pass this on")
        (folder / "NOTICE").write_bytes(b"")
        client.admin.upload_model(folder, "licensed")
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
        with pytest.raises(ApiError, match="tasks that have not ended"):
            client.admin.upload_model(folder, "licensed")
        client.admin.upload_model(folder, "licensed-too")
    assert all(storage.exists(hashlib.sha256(content).hexdigest()) for content in (b"pass this on", b"", b"with tools"))


def test_the_command_line_uploads_lists_and_removes(admin, server: Server, folder, tmp_path):
    def motet(*words: str) -> subprocess.CompletedProcess[str]:
        key = {"MOTET_API_URL": server.url, "MOTET_API_KEY": admin.key, "MOTET_ADMIN_KEY": admin.key}
        return subprocess.run(
            [sys.executable, "-c", "from motet.cli import main; main()", *words],
            env=os.environ | key | {"MOTET_STATE_DIR": str(tmp_path), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )

    told = motet("models", "add", str(folder), "--name", "by-hand")
    assert told.returncode == 0, told.stderr
    assert f"by-hand is in storage: 15 parameters, revision {revision_of(folder)[:12]}" in told.stdout
    (line,) = [line for line in motet("models").stdout.splitlines() if "by-hand" in line]
    assert line.split()[-1] == "yes"
    assert "go with hf://organisation/name" in " ".join(motet("models", "add", str(folder), "--store").stderr.split())
    assert "holds no model" in " ".join(motet("models", "add", str(tmp_path)).stderr.split())
    assert motet("models", "remove", "by-hand").returncode == 0
    assert "by-hand" not in motet("models").stdout


@pytest.mark.parametrize(
    ("names", "code", "says"),
    [
        (("config.json", "model-1.safetensors"), "incomplete", "no tokenizer.json"),
        (("config.json", "tokenizer.json"), "no_weights", "neither model.safetensors nor"),
        (("config.json", "tokenizer.json", "model.safetensors.index.json", "model-1.safetensors"), "incomplete", "model-2"),
        (("config.json", "tokenizer.json", "pytorch_model.bin", "model.safetensors"), "surplus_file", "pytorch_model.bin"),
        (("config.json", "tokenizer.json", "train.py", "model.safetensors"), "surplus_file", "train.py"),
        (("config.json", "tokenizer.json", "config.json", "model.safetensors"), "repeated", "twice"),
    ],
)
def test_what_makes_no_model_is_refused_in_words(admin, folder, names, code, says):
    (folder / "model.safetensors").write_bytes(weights((3,)))
    files = sent(admin, folder, *dict.fromkeys(names))
    files += [files[0]] if len(set(names)) < len(names) else []
    refused = admin.post("/v1/admin/stored-models", json={"name": "no-model", "files": files})
    assert refused.status_code == 422, refused.text
    (error,) = refused.json()["errors"]
    assert (error["field"], error["code"]) == ("files", code), error
    assert says in error["message"]
    assert admin.get("/v1/models/no-model").status_code == 404


def test_weights_that_are_damaged_or_were_not_sent_are_refused(admin, folder):
    (folder / "model.safetensors").write_bytes(b"\x01\x00\x00\x00\x00\x00\x00\x00{")
    names = ("config.json", "tokenizer.json", "model.safetensors")
    said = {"name": "no-model", "files": described(folder, *names)}
    (folder / "tokenizer.json").write_text('{"other": 1}')
    said["files"] = described(folder, *names)
    sent(admin, folder, "config.json", "model.safetensors")
    (error,) = admin.post("/v1/admin/stored-models", json=said).json()["errors"]
    assert error["code"] == "not_uploaded"
    assert "tokenizer.json" in error["message"]
    sent(admin, folder, "tokenizer.json")
    (error,) = admin.post("/v1/admin/stored-models", json=said).json()["errors"]
    assert (error["field"], error["code"]) == ("files", "damaged")


def test_other_bytes_than_announced_are_refused_and_others_keys_too(admin, tenant, storage):
    sha256 = hashlib.sha256(b"announced").hexdigest()
    refused = admin.put(f"/v1/admin/model-files/{sha256}", content=b"others")
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "object_mismatch")
    assert not storage.exists(sha256)
    assert tenant.put(f"/v1/admin/model-files/{sha256}", content=b"announced").status_code == 403
    assert not storage.exists(sha256)
    assert tenant.delete("/v1/admin/models/anything").status_code == 403
