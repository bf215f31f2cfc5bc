"""Folders that PEFT and our own export write: uploaded by the client, they come back the same and do the same."""

import json
from pathlib import Path

import peft
import pytest
import torch
from motet import Client
from motet.api.errors import ApiError, MotetError

from contract.job_config import JobConfig
from service.fleet.models import BaseModel
from tests.worker.model import tiny
from worker.adapters.peft_export import export_peft
from worker.adapters.warm_start import read_peft
from worker.model.arena import AdapterState, Arena
from worker.model.backbone import Backbone
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import Trainer

FAMILIES = ["llama3_rope", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "olmo2"]
NAMES = ("adapter_config.json", "adapter_model.safetensors")


@pytest.fixture(scope="module")
def bases(database, tmp_path_factory) -> None:
    """The tiny bases of every family, as the allow-list has them."""
    for name in FAMILIES:
        folder = tmp_path_factory.mktemp(name)
        tiny.configs()[name].save_pretrained(folder)
        with database.begin() as session:
            session.add(
                BaseModel(
                    name=name,
                    source=str(folder),
                    revision="c" * 64,
                    architecture="AnyForCausalLM",
                    parameters=1000,
                    max_position=256,
                )
            )


@pytest.fixture
def api(bases, server, tenant):
    with Client(server.url, tenant.key) as made:
        yield made


def trained_by_peft(name: str, folder: Path) -> torch.nn.Module:
    """A model with PEFT's adapter of random weights, saved to `folder`."""
    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(tiny.model(tiny.configs()[name]), config)
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_" in parameter_name:
                parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.3)
    model.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize("name", FAMILIES)
def test_what_peft_trained_gives_the_same_logits_here(api, tmp_path, name):
    theirs = trained_by_peft(name, tmp_path / "peft")
    made = api.adapters.upload(tmp_path / "peft", name, "mine")
    folder = api.adapters.download(made.id, tmp_path / "back")
    backbone = Backbone.of(tiny.model(tiny.configs()[name]))
    trainer = Trainer(backbone, Arena(backbone.targets, 8))
    start = read_peft({path: folder / path for path in NAMES}, trainer.arena.layout)
    segment = Segment(trainer.arena.attach(start.rank, start.scale * start.rank), tiny.examples([23, 9]))
    trainer.arena.restore(segment.slot, AdapterState(start.weights))
    with torch.no_grad():
        places = [(tiny.token_rows(row), torch.from_numpy(row.loss_mask).nonzero()[:, 0] - 1) for row in segment.examples]
        wanted = torch.cat([theirs(tokens).logits[0, at] for tokens, at in places])
        with theirs.disable_adapter():
            base = torch.cat([theirs(tokens).logits[0, at] for tokens, at in places])
    assert (wanted - base).abs().max() > 0.01
    torch.testing.assert_close(tiny.label_logits(trainer, [segment]), wanted, rtol=0, atol=1e-4)


def test_our_own_export_uploaded_again_is_the_same(api, tmp_path):
    targets = Backbone.of(tiny.model(tiny.configs()["qwen3"])).targets
    arena = Arena(targets, 8)
    rows = torch.randn(4, arena.layout.width, generator=torch.Generator().manual_seed(3))
    config = JobConfig.model_validate(
        {"learning_rate": 1e-3, "rank": 4, "alpha": 8, "batch_size": 1, "seed": 0, "rslora": True}
    )
    export_peft(tmp_path / "ours", targets, arena.layout.split(rows), config=config, base_model="b")
    made = api.adapters.upload(tmp_path / "ours", "qwen3")
    assert (made.settings.rank, made.settings.alpha, made.settings.rslora) == (4, 16.0, False)
    folder = api.adapters.download(made.id, tmp_path / "back")
    for path in NAMES:
        assert (folder / path).read_bytes() == (tmp_path / "ours" / path).read_bytes()


def test_the_client_names_what_is_wrong(api, tmp_path):
    trained_by_peft("qwen2", tmp_path / "peft")
    with pytest.raises(ApiError, match=r"no LoRA matrix|ask for"):
        api.adapters.upload(tmp_path / "peft", "gemma2")
    config = tmp_path / "peft" / NAMES[0]
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_dora": True}))
    with pytest.raises(ApiError, match="use_dora = True"):
        api.adapters.upload(tmp_path / "peft", "qwen2")
    (tmp_path / "peft" / NAMES[1]).unlink()
    with pytest.raises(MotetError, match=r"adapter_model.safetensors: No such file.*in \.bin files are never read"):
        api.adapters.upload(tmp_path / "peft", "qwen2")
