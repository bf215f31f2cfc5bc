"""The allow-list of base models: what a folder must hold, how it is pinned, and when it may change."""

import hashlib
import json
import struct

import pytest

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 128}
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def weights(*shapes: tuple[int, ...], fill: int = 0) -> bytes:
    """A safetensors file of float32 tensors."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for number, shape in enumerate(shapes):
        size = 4
        for side in shape:
            size *= side
        header[f"t{number}"] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    said = json.dumps(header).encode()
    return struct.pack("<Q", len(said)) + said + bytes([fill]) * at


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    (tmp_path / "model-2.safetensors").write_bytes(weights((4,)))
    (tmp_path / "model-1.safetensors").write_bytes(weights((2, 3), (5,)))
    return tmp_path


def test_a_folder_becomes_a_model_pinned_by_its_weights(admin, tenant, folder):
    made = admin.post("/v1/admin/models", json={"name": "org/tiny", "source": str(folder)})
    assert made.status_code == 201, made.text
    model = made.json()
    files = [folder / "model-1.safetensors", folder / "model-2.safetensors"]
    lines = "".join(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in files)
    assert model["revision"] == hashlib.sha256(lines.encode()).hexdigest()
    assert (model["parameters"], model["max_position"], model["architecture"]) == (15, 128, "LlamaForCausalLM")
    assert tenant.get("/v1/models/org/tiny").json() == model
    assert model in tenant.get("/v1/models").json()["data"]
    again = admin.post("/v1/admin/models", json={"name": "org/tiny", "source": str(folder)})
    assert (again.status_code, again.json()) == (201, model)


def test_weights_that_tasks_are_pinned_to_do_not_change_under_them(admin, folder):
    name = "pinned"
    admin.post("/v1/admin/models", json={"name": name, "source": str(folder)})
    task = admin.task(base_model=name)
    (folder / "model-2.safetensors").write_bytes(weights((4,), fill=1))
    refused = admin.post("/v1/admin/models", json={"name": name, "source": str(folder)})
    assert (refused.status_code, refused.json()["code"]) == (409, "revision_in_use")
    assert task["id"] in refused.json()["detail"]
    admin.post(f"/v1/tasks/{task['id']}/cancel")
    changed = admin.post("/v1/admin/models", json={"name": name, "source": str(folder)})
    assert changed.status_code == 201
    assert changed.json()["revision"] != task["base_revision"]


@pytest.mark.parametrize(
    ("spoil", "code", "says"),
    [
        (lambda f: (f / "tokenizer.json").unlink(), "incomplete", "tokenizer.json"),
        (lambda f: (f / "config.json").write_text("{"), "damaged", "damaged"),
        (
            lambda f: (f / "config.json").write_text('{"model_type": "llama", "architectures": []}'),
            "config_incomplete",
            "archi",
        ),
        (lambda f: (f / "config.json").write_text("{}"), "config_incomplete", "model_type"),
        (
            lambda f: (f / "config.json").write_text('{"model_type": "gpt2"}'),
            "unsupported_architecture",
            "works: llama, mistral",
        ),
        (lambda f: (f / "model-1.safetensors").write_bytes(b"\xff" * 9), "damaged", "not a safetensors file"),
        (lambda f: (f / "model-1.safetensors").write_bytes(b""), "damaged", "damaged"),
        (lambda f: [path.unlink() for path in f.glob("*.safetensors")], "no_weights", "no *.safetensors"),
    ],
)
def test_a_folder_that_could_not_be_loaded_is_refused_with_the_reason(admin, folder, spoil, code, says):
    spoil(folder)
    response = admin.post("/v1/admin/models", json={"name": "spoilt", "source": str(folder)})
    assert response.status_code == 422
    (error,) = response.json()["errors"]
    assert (error["field"], error["code"]) == ("source", code)
    assert says in error["message"]


def test_other_mistakes_name_their_field(admin, tenant, folder):
    assert (
        admin.post("/v1/admin/models", json={"name": "x", "source": "models/x"}).json()["errors"][0]["code"] == "not_absolute"
    )
    assert admin.post("/v1/admin/models", json={"name": "../x", "source": str(folder)}).json()["errors"][0]["field"] == "name"
    assert tenant.post("/v1/admin/models", json={"name": "x", "source": str(folder)}).status_code == 403
    assert tenant.get("/v1/models/none/such").status_code == 404
