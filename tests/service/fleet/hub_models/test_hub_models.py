"""Base models by their name on the hub: pinned by commit, checked and told before any download, refused in words."""

import hashlib
import json
import logging
import os
import subprocess
import sys

import pytest

from contract.compatibility.capabilities import SHARDED_BASES
from contract.model_revision import revision_of
from service.database.engine import Database
from service.fleet.base_models.hub_models import read_repository
from service.fleet.models import Node
from service.hub.hub_client import Hub, HubUnavailable
from tests.hub.hub_process import COMMIT, MODEL, TOKEN
from tests.service.api import chat_rows
from tests.service.fleet.hub_models.conftest import FILES, NAME, add
from tests.service.fleet.test_model_catalog import CONFIG, weights
from tests.service.live_server import Server


def headed(header: bytes) -> bytes:
    """A safetensors file without tensors' bytes."""
    return len(header).to_bytes(8, "little") + header


def refused(answer, field: str, code: str) -> str:
    assert answer.status_code == 422, answer.text
    (error,) = answer.json()["errors"]
    assert (error["field"], error["code"]) == (field, code), error
    return str(error["message"])


def test_a_repository_becomes_a_model_pinned_by_commit_and_no_weights_are_downloaded(admin, tenant, hub):
    before = len(hub.requests)
    made = add(admin)
    assert made.status_code == 201, made.text
    told = made.json()
    assert (told["name"], told["source"], told["commit"]) == (NAME, f"hf://{NAME}", COMMIT)
    assert (told["license"], told["gated"], told["dry_run"]) == ("apache-2.0", False, False)
    assert told["revision"] == revision_of(MODEL), "the same weights in a folder have the same revision"
    sizes = {file["path"]: file["bytes"] for file in told["files"]}
    assert sizes == {path.name: path.stat().st_size for path in MODEL.iterdir() if path.name != "README.md"}
    assert told["bytes"] == sum(sizes.values())
    assert not [line for line in hub.requests if line[0].startswith("/api/") and "/models/" not in line[0]], "nor telemetry"
    of_weights = [line for line in hub.requests[before:] if "model.safetensors" in line[0]]
    assert of_weights, "their header is read"
    assert {line[1] for line in of_weights} == {"bytes=0-131071"}
    assert any(COMMIT in line[0] for line in of_weights), "by the commit, whatever the branch does meanwhile"
    listed = tenant.get(f"/v1/models/{NAME}").json()
    assert {key: listed[key] for key in ("revision", "commit", "parameters")} == {
        key: told[key] for key in ("revision", "commit", "parameters")
    }
    again = add(admin)
    assert (again.status_code, again.json()) == (201, told)


def test_a_preview_reads_the_tokenizer_from_storage_though_the_hub_is_down(admin, tenant, hub):
    assert add(admin).status_code == 201
    admin.post("/v1/admin/models", json={"name": "in a folder".replace(" ", "-"), "source": str(MODEL)})
    hub.faults(down=True)
    file = tenant.file(chat_rows(3))
    by_name, by_folder = (
        tenant.post("/v1/files/preview", json={"file_id": file, "base_model": name}) for name in (NAME, "in-a-folder")
    )
    assert by_name.status_code == 200, by_name.text
    assert by_name.json()["rows"] == by_folder.json()["rows"]


def test_a_dry_run_tells_all_and_changes_nothing(admin, hub):
    hub.add("org/dry", FILES)
    told = add(admin, "org/dry", dry_run=True)
    assert told.status_code == 200, told.text
    assert (told.json()["parameters"], told.json()["dry_run"], told.json()["max_position"]) == (11, True, 128)
    assert admin.get("/v1/models/org/dry").status_code == 404


def test_the_command_line_tells_adds_and_lists(admin, hub, server: Server, tmp_path):
    hub.add("org/by-hand", FILES, license="mit", gated="auto")
    hub.add("org/by-word", FILES, license="mit")

    def motet(*words: str) -> subprocess.CompletedProcess[str]:
        key = {"MOTET_API_URL": server.url, "MOTET_API_KEY": admin.key, "MOTET_ADMIN_KEY": admin.key}
        here = os.environ | key | {"MOTET_STATE_DIR": str(tmp_path), "COLUMNS": "200"}
        return subprocess.run(
            [sys.executable, "-c", "from motet.cli import main; main()", *words],
            env=here,
            capture_output=True,
            text=True,
            check=False,
        )

    told = motet("models", "add", "hf://org/by-word", "--dry-run")
    assert told.returncode == 0, told.stderr
    assert f"org/by-word would be pinned at commit {COMMIT[:12]}; licence mit" in told.stdout
    assert "11 parameters" in told.stdout
    assert "no node is ready" in told.stdout
    added = motet("models", "add", "hf://org/by-word", "--name", "ours", "--json")
    assert (json.loads(added.stdout)["name"], json.loads(added.stdout)["commit"]) == ("ours", COMMIT)
    assert "ours" in {one["name"] for one in json.loads(motet("models", "--json").stdout)}
    refused_ = motet("models", "add", "hf://org/by-hand")
    assert refused_.returncode != 0
    assert "set HF_TOKEN of the service and of the nodes" in " ".join(refused_.stderr.split())


def test_the_fleets_gpus_are_told_and_a_base_that_fits_none_is_refused(admin, hub, database: Database):
    big = json.dumps({"w": {"dtype": "BF16", "shape": [10**6, 10**5], "data_offsets": [0, 2 * 10**11]}}).encode()
    hub.add("org/large", FILES | {"model.safetensors": headed(big)})
    assert add(admin, "org/large", dry_run=True).json()["fits"] == []
    with database.begin() as session:
        node = {"boot_id": "b", "status": "ready", "versions": {}, "credential_hash": b"x"}
        gpu = {"index": 0, "type": "H200", "memory_bytes": 141 * 2**30}
        session.add(Node(id="node_fit", name="fit", devices=[gpu], **node))
    try:
        fits = add(admin, dry_run=True).json()["fits"]
        every = ["bf16", "nf4", "nf4_double", "fp8"]
        assert fits == [{"type": "H200", "memory_bytes": 141 * 2**30, "precisions": every, "sharded": {}}]
        told = add(admin, "org/large", dry_run=True)
        assert [fit["precisions"] for fit in told.json()["fits"]] == [["nf4", "nf4_double", "fp8"]]
        hub.add("org/larger", FILES | {"model.safetensors": headed(bigger(big))})
        message = refused(add(admin, "org/larger"), "source", "too_large")
        assert "1000.0 billion parameters fit no GPU" in message
        assert "H200, has 141.00 GiB" in message
        assert "smaller base" in message
        with database.begin() as session:  # its GPUs share a base
            able = session.get_one(Node, "node_fit")
            able.devices, able.capabilities = [gpu | {"index": index} for index in range(8)], [SHARDED_BASES]
        (fit,) = add(admin, "org/larger").json()["fits"]
        assert (fit["precisions"], fit["sharded"]) == ([], {"nf4": 8, "nf4_double": 8})
    finally:
        with database.begin() as session:
            session.delete(session.get_one(Node, "node_fit"))


def bigger(header: bytes) -> bytes:
    return header.replace(b"1000000,", b"10000000,")


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"config.json": None}, "incomplete", "no config.json"),
        ({"tokenizer.json": None}, "incomplete", "no tokenizer.json"),
        ({"model.safetensors": None, "pytorch_model.bin": b"x"}, "pickled_weights", "name a repository or a revision with"),
        ({"model.safetensors": None}, "no_weights", "no *.safetensors"),
        ({"model.safetensors": None, "adapter_model.safetensors": weights((2,))}, "no_weights", "is it an adapter?"),
        ({"config.json": b'{"model_type": "gpt2"}'}, "unsupported_architecture", "works: llama, mistral"),
        (
            {"config.json": json.dumps(CONFIG | {"quantization_config": {"quant_method": "gptq"}}).encode()},
            "unsupported_architecture",
            "quantised; name the original",
        ),
        ({"config.json": b"{"}, "damaged", "damaged"),
        ({"model.safetensors": b"\xff" * 9}, "damaged", "not a safetensors file"),
        ({"model.safetensors.index.json": b'{"weight_map": {"a": "m-1.safetensors"}}'}, "incomplete", "m-1.safetensors"),
        (
            {"model.safetensors.index.json": b'{"weight_map": {"a": "m.bin"}}', "m.bin": b"x"},
            "incomplete",
            "only *.safetensors",
        ),
        ({"model.safetensors.index.json": b"[" * 100_000}, "damaged", "model.safetensors.index.json"),
        ({"config.json": b"[" * 100_000}, "damaged", "damaged"),
        ({"model.safetensors": headed(b'{"w": {"shape": [9000000000000000000, 9]}}')}, "damaged", "81000000000000000000"),
    ],
)
def test_what_could_not_be_trained_on_is_refused_with_the_reason(admin, hub, change, code, says):
    name = "org/" + hashlib.sha256(repr(change).encode()).hexdigest()[:8]
    hub.add(name, {path: content for path, content in (FILES | change).items() if content is not None})
    assert says in refused(add(admin, name), "source", code)


def test_a_sharded_model_is_the_files_of_its_index(admin, hub):
    files = {path: content for path, content in FILES.items() if path != "model.safetensors"}
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    files |= {"m-1.safetensors": weights((2,)), "m-2.safetensors": weights((3,)), "consolidated.safetensors": weights((9,))}
    hub.add("org/sharded", files | {"model.safetensors.index.json": json.dumps(index).encode()})
    told = add(admin, "org/sharded", dry_run=True).json()
    assert told["parameters"] == 5
    assert "consolidated.safetensors" not in {file["path"] for file in told["files"]}


def test_unknown_names_revisions_and_gates_name_the_field_and_the_way_out(admin, hub):
    assert "HF_TOKEN is not set; check the name" in refused(add(admin, "org/none"), "source", "hub_unknown")
    assert "branches, tags and commits" in refused(add(admin, revision="v9"), "revision", "revision_unknown")
    hub.add("org/gated", FILES, gated="manual")
    assert "accept its terms at" in refused(add(admin, "org/gated"), "source", "hub_gated")
    for source in ("hf://", "hf://name", "hf://a/b/c", "hf://a/../b", "https://huggingface.co/a/b", "/models/x"):
        assert "hf://organisation/name" in refused(
            admin.post("/v1/models", json={"source": source}), "source", "not_a_repository"
        )
    assert admin.post("/v1/models", json={"source": f"hf://{NAME}", "token": "hf_x"}).status_code == 422


def test_only_an_admin_may_name_one(tenant):
    assert add(tenant).status_code == 403


def test_a_hub_that_is_down_or_sends_on_to_our_network_is_told(admin, hub):
    hub.faults(down=True)
    answer = add(admin)
    assert (answer.status_code, answer.json()["code"]) == (503, "hub_unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    hub.faults(redirect="http://169.254.169.254/latest/meta-data")
    assert "MOTET_HUB_NETWORKS" in refused(add(admin), "source", "hub_redirects")
    hub.faults(wrong=["tokenizer.json"])
    assert "tokenizer.json has not the bytes" in refused(add(admin), "source", "wrong_bytes")


def test_a_hub_that_is_slow_is_given_up_after_a_limit_that_is_told(settings_for, new_database_url, tmp_path, hub):
    hub.faults(block=64, seconds=0.2)
    slow = Hub(settings_for(new_database_url, tmp_path, hf_endpoint=hub.url), seconds=1.0)
    with pytest.raises(HubUnavailable) as raised:
        read_repository(slow, NAME, f"hf://{NAME}", "main")
    assert "within 1 s" in raised.value.detail
    assert "HF_ENDPOINT to a mirror" in raised.value.detail


def test_a_hub_that_is_gone_is_told(settings_for, new_database_url, tmp_path, serve, hub, free_port):
    admin = serve(settings_for(new_database_url, tmp_path, hf_endpoint=f"http://127.0.0.1:{free_port()}"))
    answer = add(admin)
    assert (answer.status_code, answer.json()["code"]) == (503, "hub_unavailable")
    assert "check HF_ENDPOINT" in answer.json()["detail"]


def test_a_token_opens_a_gated_repository_and_is_neither_stored_nor_logged(
    settings_for, new_database_url, tmp_path, serve, hub, caplog
):
    caplog.set_level(logging.DEBUG)
    hub.add("org/behind", FILES, gated="auto", private=True)
    hub.faults(cdn=hub.other_origin)
    networks = ("127.0.0.0/8", "::1/128")
    admin = serve(
        settings_for(new_database_url, tmp_path, hf_endpoint=hub.url, hf_token=TOKEN, hub_networks=",".join(networks))
    )
    before = len(hub.requests)
    told = add(admin, "org/behind")
    assert (told.status_code, told.json()["gated"]) == (201, True), told.text
    assert TOKEN not in caplog.text
    assert TOKEN not in told.text + admin.get("/v1/audit").text
    sent = {(line[0].startswith("/cdn/"), line[2]) for line in hub.requests[before:]}
    assert sent == {(False, "token"), (True, "anonymous")}, "a bucket behind the hub gets no token"


def test_where_the_hub_may_not_be_called_nothing_is(settings_for, new_database_url, tmp_path, serve, hub):
    admin = serve(settings_for(new_database_url, tmp_path, hf_endpoint=hub.url, hf_hub_offline=True))
    before = len(hub.requests)
    answer = add(admin)
    assert (answer.status_code, answer.json()["code"]) == (409, "hub_offline")
    assert len(hub.requests) == before
