"""A base that is deep enough to be sharded in parts."""

import shutil

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from contract.messages.placement_messages import BaseModelRef
from contract.model_revision import revision_of


@pytest.fixture(scope="session")
def deep_base(tiny_base: BaseModelRef, tmp_path_factory: pytest.TempPathFactory) -> BaseModelRef:
    """A Llama of five layers, with a head of its own, under the tokenizer of the tiny one."""
    folder = tmp_path_factory.mktemp("bases") / "deep"
    shutil.copytree(tiny_base.source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = LlamaConfig.from_pretrained(tiny_base.source, num_hidden_layers=5, tie_word_embeddings=False)
    torch.manual_seed(1)
    LlamaForCausalLM(config).save_pretrained(folder)
    return BaseModelRef(name="tiny", source=str(folder), revision=revision_of(folder))
