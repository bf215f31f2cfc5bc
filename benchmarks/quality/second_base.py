"""Makes the second base: of another family and five times the size of the example base, by the example's own recipe.

It is not committed: a sweep makes it on the machine that it runs on, in a minute or two of a GPU. It has read no set.
"""

import os
from dataclasses import replace
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from examples import train_base_model as recipe

SHAPE = replace(recipe.Shape(), vocabulary=8192, hidden=512, layers=10, heads=8, mlp=1536, batch=64)
TINY = replace(recipe.TINY, batch=8)
TEXTS = (
    "text/gutenberg_children/text.txt.gz",
    "text/gutenberg_novels/text.txt.gz",
    "text/wikitext2_valid/text.txt",
    "sft/gpteacher_codegen/train.jsonl",
    "sft/self_instruct_human/train.jsonl",
    "sft/openbookqa/train.jsonl",
)
_KEY_VALUE_HEADS = 4
STEPS = 1500


def make(data: Path, folder: Path, small: bool) -> None:
    """Write the base to `folder`, once; whole or not at all. small: a tiny one, of one text, to try the benchmark on a CPU."""
    if folder.exists():
        return
    torch.manual_seed(0)
    shape, steps = (TINY, 60) if small else (SHAPE, STEPS)
    texts = [text for name in (TEXTS[4:5] if small else TEXTS) for text in recipe.documents(data / name)]
    tokenizer = recipe.train_tokenizer(texts, shape.vocabulary)
    blocks = recipe.blocks_of(tokenizer, texts, shape.length)
    heads = min(_KEY_VALUE_HEADS, shape.heads)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=tokenizer.get_vocab_size(),
                hidden_size=shape.hidden,
                intermediate_size=shape.mlp,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                num_key_value_heads=heads,
                max_position_embeddings=1024,
                tie_word_embeddings=True,
                bos_token_id=tokenizer.token_to_id(recipe.SPECIAL[0]),
                eos_token_id=tokenizer.token_to_id("<|end|>"),
                pad_token_id=tokenizer.token_to_id("<|pad|>"),
            )
        )
    loss = recipe.train(model, blocks, shape, steps, 1e-3, 0)
    print(f"{folder.name}: {model.num_parameters():,} parameters, validation loss {loss:.3f}", flush=True)
    new = folder.with_name(f"{folder.name}.new")
    new.mkdir(parents=True, exist_ok=True)
    recipe.save(new, model, tokenizer)
    os.replace(new, folder)
