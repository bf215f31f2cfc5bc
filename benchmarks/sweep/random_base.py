"""A base model of a Llama shape with random weights, in a folder that a worker can load, with the example base's tokenizer."""

import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.llama_shapes import LlamaShape
from contract.messages.placement_messages import BaseModelRef
from contract.model_revision import revision_of

TOKENIZER = Path(__file__).parents[2] / "examples" / "base-model"


def begin_base(shape: LlamaShape, folder: Path) -> LlamaConfig:
    """Make the folder, with the tokenizer. Returns the configuration, which is not written yet."""
    folder.mkdir(parents=True)
    for path in TOKENIZER.iterdir():
        if "token" in path.name or path.suffix == ".jinja":
            shutil.copy(path, folder)
    return LlamaConfig(
        hidden_size=shape.hidden, intermediate_size=shape.ffn, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_size,
        vocab_size=shape.vocabulary, tie_word_embeddings=shape.tied, max_position_embeddings=4096, rope_theta=500000.0,
    )  # fmt: skip


def write_base(shape: LlamaShape, folder: Path, device: torch.device) -> BaseModelRef:
    """Draw the weights on `device` and write them in bf16 to the new folder `folder`. The tokenizer has fewer tokens than the
    base; the others' rows of the head are zero, so that a greedy answer is text."""
    config = begin_base(shape, folder)
    torch.manual_seed(0)
    with device:
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    known = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    model.get_output_embeddings().weight.data[known:] = 0
    model.save_pretrained(folder)
    return BaseModelRef(name="random", source=str(folder), revision=revision_of(folder))
