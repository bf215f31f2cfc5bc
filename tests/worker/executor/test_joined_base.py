"""A task on a base whose files join matrices, through the executor: trained, exported, loaded by PEFT, and read again."""

import shutil

import peft
import pytest
import torch
from transformers import AutoTokenizer, Phi3Config, Phi3ForCausalLM

from contract.messages.placement_messages import BaseModelRef
from contract.messages.report_messages import AdapterKept, BaseEvaluated
from contract.model_revision import revision_of
from tests.worker.conftest import placer
from tests.worker.inside import Inside
from worker.adapters.warm_start import read_peft
from worker.replicas.base_loader import load_base

RANK = 6


@pytest.fixture
def phi3(tiny_base: BaseModelRef, tmp_path) -> BaseModelRef:
    """With heads of which three quarters turn."""
    folder = tmp_path / "phi3"
    shutil.copytree(tiny_base.source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.manual_seed(2)
    config = Phi3Config(
        vocab_size=len(AutoTokenizer.from_pretrained(folder)),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75},
        eos_token_id=0,
        pad_token_id=0,
    )
    Phi3ForCausalLM(config).save_pretrained(folder)
    return BaseModelRef(name="phi3", source=str(folder), revision=revision_of(folder))


def test_a_task_trains_and_its_adapter_is_the_one_that_peft_loads(fleet, phi3, tmp_path):
    space = {"learning_rate": [1e-2], "rank": [RANK], "batch_size": [4]}
    training = {"epochs": 1, "max_steps": 6}
    placement = placer(fleet, phi3)(space, early_exit={"policy": "none"}, training=training)
    (reported,) = Inside(fleet, tmp_path / "node").run(placement)
    assert [event.kind for event in reported.ended.values()] == ["job_completed"]
    (kept,) = reported.of(AdapterKept)
    assert kept.manifest.peft_rank == 3 * RANK
    assert kept.manifest.val_loss < reported.of(BaseEvaluated)[0].val_loss
    folder = tmp_path / "adapter"
    folder.mkdir()
    for file in kept.manifest.files:
        (folder / file.path).write_bytes(fleet.objects[file.sha256])
    start = read_peft(
        {file.path: folder / file.path for file in kept.manifest.files},
        load_base(phi3, torch.device("cpu")).trainer.arena.layout,
    )
    assert start.rank == RANK
    plain = Phi3ForCausalLM.from_pretrained(phi3.source)
    tokens = torch.arange(1, 40)[None]
    with torch.no_grad():
        before = plain(tokens).logits
        after = peft.PeftModel.from_pretrained(plain, folder)(tokens).logits
    assert (after - before).abs().max() > 1e-3
