"""POST /v1/adapters: a PEFT folder comes back as it was, starts a task, counts and goes as others do; mistakes are named."""

import hashlib
import io
import json
import os
import tarfile
import time

import numpy as np
import pytest
from sqlalchemy import select, type_coerce, update
from sqlalchemy.dialects.postgresql import JSONB

from contract.messages.adapter_manifest import AdapterManifest
from contract.messages.peft_settings import NotPlainLora, PeftSettings
from service.adapters.models import Adapter
from service.background.garbage_collection import KEPT_SECONDS, sweep
from service.background.retention import Retention, forget
from service.fleet.desired_state import warm_start
from service.storage.object_store import Storage
from service.tasks.models import Task
from service.tenants.models import Tenant
from tests.service.adapters.adapter_uploads import CONFIG, safetensors, tensors, upload

pytestmark = pytest.mark.usefixtures("toy")
NAMES = list(tensors())
PATCH = {"q_proj": 8}


@pytest.fixture
def mine(tenant) -> dict:
    made = upload(tenant, safetensors(tensors()), name="from elsewhere")
    assert made.status_code == 201, made.text
    return made.json()


def test_an_upload_comes_back_as_it_was(tenant, new_tenant, mine):
    weights, config = safetensors(tensors()), json.dumps(CONFIG).encode()
    digests = {"adapter_config.json": config, "adapter_model.safetensors": weights}
    assert {file["path"]: file["sha256"] for file in mine["files"]} == {
        path: hashlib.sha256(content).hexdigest() for path, content in digests.items()
    }
    assert (mine["name"], mine["base_model"], mine["bytes"]) == ("from elsewhere", "toy", len(weights) + len(config))
    assert mine["settings"] == {"rank": 2, "alpha": 4.0, "rslora": False, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    assert [mine[field] for field in ("task_id", "job_id", "step", "val_loss", "lineage")] == [None] * 5
    assert tenant.get(f"/v1/adapters/{mine['id']}").json() == mine
    lists = {origin: tenant.get("/v1/adapters", params={"origin": origin}).json()["data"] for origin in ("any", "uploaded")}
    assert lists == {"any": [mine], "uploaded": [mine]}
    assert tenant.get("/v1/adapters").json()["data"] == [], "clients of before could not read it"
    assert tenant.get(f"/v1/adapters/{mine['id']}/files/adapter_model.safetensors").content == weights
    archive = tenant.get(f"/v1/adapters/{mine['id']}/archive").content
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as found:
        assert {entry.name.partition("/")[2] for entry in found.getmembers()} == set(digests)
    assert tenant.get(f"/v1/adapters/{mine['id']}/files/README.md").status_code == 404
    other = new_tenant()
    assert other.get(f"/v1/adapters/{mine['id']}").status_code == 404
    assert other.get("/v1/adapters", params={"origin": "any"}).json()["data"] == []
    (entry,) = tenant.get("/v1/audit", params={"action": "create_adapter"}).json()["data"]
    assert entry["targets"] == [mine["id"]]


def test_a_repeated_upload_makes_one_adapter(tenant):
    weights = safetensors(tensors())
    first, again = (upload(tenant, weights, key="once") for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert len(tenant.get("/v1/adapters", params={"origin": "uploaded"}).json()["data"]) == 1
    assert upload(tenant, weights, key="once", name="other").status_code == 422


def test_a_quota_counts_it_and_keeps_more_out(tenant, database, mine):
    assert tenant.get("/v1/quotas").json()["stored_bytes"]["used"] == mine["bytes"]
    with database.begin() as session:
        limit = mine["bytes"] + 100
        session.execute(update(Tenant).where(Tenant.id == tenant.tenant_id).values(stored_bytes_quota=limit))
    refused = upload(tenant, safetensors(tensors()))
    assert (refused.status_code, refused.json()["code"]) == (403, "quota_exceeded")
    assert tenant.delete(f"/v1/adapters/{mine['id']}").status_code == 204
    assert tenant.get("/v1/quotas").json()["stored_bytes"]["used"] == 0


def test_deleted_its_bytes_go_and_then_its_row(tenant, database, storage):
    mine = upload(tenant, safetensors(tensors(seed=1))).json()
    own = next(file["sha256"] for file in mine["files"] if file["path"].endswith(".safetensors"))
    os.utime(storage.path(own), (time.time() - KEPT_SECONDS - 60,) * 2)
    sweep(database, storage)
    assert storage.exists(own), "it is referred to"
    assert tenant.delete(f"/v1/adapters/{mine['id']}").status_code == 204
    assert tenant.get(f"/v1/adapters/{mine['id']}").json()["code"] == "adapter_deleted"
    os.utime(storage.path(own), (time.time() - KEPT_SECONDS - 60,) * 2)
    sweep(database, storage)
    assert not storage.exists(own)
    days = Retention()
    forget(database, days)
    with database.begin() as session:
        row = session.get_one(Adapter, mine["id"])
        row.deleted_at = row.deleted_at - days.deleted
    assert forget(database, days)["adapters"] == 1
    with database.begin() as session:
        assert session.scalar(select(Adapter.id).where(Adapter.id == mine["id"])) is None


def test_a_task_starts_from_it_and_keeps_it(tenant, new_tenant, database, mine):
    space = {"learning_rate": [1e-4], "batch_size": [4], "rank": [2]}
    task = tenant.task(base_model="toy", warm_start={"adapter_id": mine["id"]}, search_space=space)
    with database.begin() as session:
        ref = warm_start(session, session.get_one(Task, task["id"]))
        assert ref is not None
        assert [file.model_dump() for file in ref.files] == mine["files"]
    refused = tenant.delete(f"/v1/adapters/{mine['id']}")
    assert (refused.status_code, refused.json()["tasks"]) == (409, [task["id"]])
    start = {"warm_start": {"adapter_id": mine["id"]}}
    wrong = tenant.post("/v1/tasks", json=tenant.spec(tenant.file(), search_space=space, **start))
    assert [error["code"] for error in wrong.json()["errors"]] == ["adapter_of_other_base"]
    listed = {**space, "rank": [4], "target_modules": [["q_proj"]]}
    wrong = tenant.post("/v1/tasks", json=tenant.spec(tenant.file(), base_model="toy", search_space=listed, **start))
    assert [error["code"] for error in wrong.json()["errors"]] == ["rank_differs", "modules_left_out"]
    other = new_tenant()
    wrong = other.post("/v1/tasks", json=other.spec(other.file(), base_model="toy", **start))
    assert [error["code"] for error in wrong.json()["errors"]] == ["adapter_unknown"]


def changed(**changes: object) -> dict:
    return CONFIG | changes


def without(part: str) -> bytes:
    return safetensors({name: tensor for name, tensor in tensors().items() if part not in name})


def reshaped() -> bytes:
    held = tensors()
    held[NAMES[0]] = held[NAMES[0]][:, :-1].copy()
    return safetensors(held)


def poisoned(kind: str, value: float) -> bytes:
    held = tensors(kind=kind)
    held[NAMES[-1]][-1, -1] = value
    return safetensors(held)


WHOLE = safetensors(tensors())
WRONG = {
    "a rank pattern": (WHOLE, changed(rank_pattern=PATCH), "rank_pattern = {'q_proj': 8}"),
    "an alpha pattern": (WHOLE, changed(alpha_pattern=PATCH), "alpha_pattern = {'q_proj': 8}"),
    "DoRA": (WHOLE, changed(use_dora=True), "use_dora = True"),
    "a bias": (WHOLE, changed(bias="all"), "bias = 'all'"),
    "modules saved whole": (WHOLE, changed(modules_to_save=["lm_head"]), "modules_to_save = ['lm_head']"),
    "an initialisation that changes the base": (WHOLE, changed(init_lora_weights="pissa_niter_16"), "'pissa_niter_16'"),
    "another method": (WHOLE, changed(peft_type="IA3"), "peft_type = 'IA3'"),
    "a module that no base has": (WHOLE, changed(target_modules=["c_attn"]), "'c_attn' is none of q_proj"),
    "modules without matrices": (WHOLE, changed(target_modules=["q_proj"]), "the file holds q_proj, v_proj, down_proj"),
    "another rank": (WHOLE, changed(r=4), "toy and rank 4 ask for [4, 12]"),
    "no rank": (WHOLE, changed(r=0), "r = 0"),
    "no object": (WHOLE, [], "is no object"),
    "a missing matrix": (without("layers.1.self_attn.q_proj.lora_B"), CONFIG, "layers.1.self_attn.q_proj.lora_B.weight"),
    "a missing layer": (without("layers.0.mlp"), CONFIG, "layers.0.mlp.down_proj.lora_A.weight"),
    "another shape": (reshaped(), CONFIG, "of shape [2, 11]; toy and rank 2 ask for [2, 12]"),
    "a stranger": (
        safetensors(tensors() | {"lm_head.weight": np.zeros((1, 1), "<f4")}),
        CONFIG,
        "holds lm_head.weight, which is no LoRA matrix of toy",
    ),
    "infinity": (poisoned("<f4", np.inf), CONFIG, f"not finite in {NAMES[-1]}"),
    "NaN in half precision": (poisoned("<f2", np.nan), CONFIG, f"not finite in {NAMES[-1]}"),
    "another dtype": (safetensors(tensors(), dtype="F64"), CONFIG, "in F64; what works: F32, F16, BF16"),
    "overlapping offsets": (safetensors(tensors(), data_offsets=[0, 4]), CONFIG, "cannot be right"),
    "a cut file": (WHOLE[:-1], CONFIG, "ends before its header says so"),
    "more than said": (WHOLE + b"\0" * 4, CONFIG, "goes on after the last tensor"),
    "no tensors": (safetensors({}), CONFIG, "holds no tensors"),
    "a pickle": (b"PK\x03\x04" + b"\x93" * 60, CONFIG, "pickled weights are never read"),
    "a header that lists nothing": (b"\x02" + b"\0" * 7 + b"[]", CONFIG, "its header lists no tensors"),
    "nothing": (b"", CONFIG, "ends before its header says so"),
}


def keys(storage: Storage) -> set[str]:
    return {stored.sha256 for stored in storage.keys()}  # noqa: SIM118


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named_and_nothing_is_kept(tenant, storage, what):
    weights, config, words = WRONG[what]
    before = keys(storage)
    refused = upload(tenant, weights, config=config)
    assert refused.status_code == 422, refused.text
    assert any(words in error["message"] for error in refused.json()["errors"]), refused.text
    assert keys(storage) == before
    assert tenant.get("/v1/adapters", params={"origin": "any"}).json()["data"] == []


def test_processes_of_the_version_before_can_hand_it_to_workers(database, mine):
    """They read every adapter's manifest as that of a trained one."""
    with database.begin() as session:
        stored = session.scalar(select(type_coerce(Adapter.manifest, JSONB)).where(Adapter.id == mine["id"]))
    read = AdapterManifest.model_validate(stored)
    assert [file.model_dump() for file in read.files] == mine["files"]
    assert (read.lineage.base_model, read.lineage.base_revision) == ("toy", "b" * 64)
    assert (read.lineage.config.rank, read.lineage.config.target_modules) == (2, ("q_proj", "v_proj", "down_proj"))


CHANGES_THE_BASE = ("pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "mica", {}, 2)


@pytest.mark.parametrize("initial", CHANGES_THE_BASE)
def test_an_adapter_to_a_changed_base_is_refused_with_the_way_out(initial):
    with pytest.raises(NotPlainLora, match=r"init_lora_weights = .*path_initial_model_for_weight_conversion") as refused:
        PeftSettings.read(json.dumps(changed(init_lora_weights=initial)).encode())
    assert refused.value.setting == "init_lora_weights"


@pytest.mark.parametrize("initial", [True, False, None, "gaussian", "orthogonal", "eva"])
def test_an_initialisation_that_leaves_the_base_is_taken(initial):
    assert PeftSettings.read(json.dumps(changed(init_lora_weights=initial)).encode()).rank == 2


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (b"[" * 100_000, "has an adapter_config.json that is nested too deeply"),
        (b"{", "has an adapter_config.json that cannot be read: "),
        (b"[]", "has an adapter_config.json that is no object"),
    ],
    ids=["deep", "cut", "list"],
)
def test_a_damaged_configuration_is_told_so(config, words):
    with pytest.raises(NotPlainLora, match=words):
        PeftSettings.read(config)


def test_a_uniform_pattern_is_none(tenant):
    config = changed(rank_pattern={"q_proj": 2}, alpha_pattern={"q_proj": 4})
    assert upload(tenant, safetensors(tensors()), config=config).status_code == 201


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"base_model": "none-such"}, "base_model"),
        ({"base_model": "small"}, "base_model"),  # its folder is nowhere
        ({"base_model": ""}, "base_model"),
        ({"name": "\n"}, "name"),
        ({"name": "n" * 129}, "name"),
        ({"name": "n" * 300}, "name"),
        ({"purpose": "x"}, "purpose"),
    ],
)
def test_wrong_parts_are_named(tenant, small_model, parts, field):
    base = parts.get("base_model", "toy")
    refused = upload(tenant, WHOLE, base, **{name: said for name, said in parts.items() if name != "base_model"})
    assert refused.status_code == 422, refused.text
    (error,) = refused.json()["errors"]
    assert error["field"] == field
    assert field != "name" or error["message"] == "must have 1 to 128 printable characters"


def test_a_name_with_slashes_is_one(tenant):
    made = upload(tenant, WHOLE, name="team/")
    assert (made.status_code, made.json()["name"]) == (201, "team/")
    model = f"ft:toy:team/:{made.json()['id']}"
    assert tenant.get(f"/openai/v1/models/{model}").json()["id"] == model


def test_weights_have_a_limit_of_their_own(serve, settings_for, database_url, tmp_path):
    caller = serve(settings_for(database_url, tmp_path, max_adapter_bytes=len(WHOLE), max_file_bytes=10))
    assert upload(caller, WHOLE).status_code == 201
    refused = upload(caller, WHOLE + b"\0")
    assert (refused.status_code, refused.json()["code"]) == (413, "adapter_too_large")
    assert "save it in bfloat16 or float16" in refused.json()["detail"]


_WIDE = json.dumps(CONFIG | {"r": 257, "target_modules": ["qkv_proj"]})  # as an export of joined matrices may have


@pytest.mark.parametrize(
    ("config", "code"),
    [("", "missing"), ("{", "not_plain_lora"), (_WIDE, "not_plain_lora"), ("{" + " " * 2**18, "too_long")],
    ids=["none", "cut", "wide", "long"],
)
def test_a_wrong_configuration_is_named(tenant, config, code):
    parts = {"file": ("adapter_model.safetensors", WHOLE), "config": (None, config)}
    refused = tenant.post("/v1/adapters", files=parts, data={"base_model": "toy"})
    assert refused.status_code == 422, refused.text
    (error,) = refused.json()["errors"]
    assert (error["field"], error["code"]) == ("config", code)
