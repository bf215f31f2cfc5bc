"""The tokens that end a text: the tokenizer's, and those of the model's generation settings. Reads a model folder."""

from collections.abc import Iterable
from pathlib import Path

from transformers import GenerationConfig, PreTrainedTokenizerBase

GENERATION_CONFIG = "generation_config.json"


def end_tokens(folder: Path | str, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Numbers of the end tokens. A chat model lists its end of a turn beside its end of a text."""
    found = {tokenizer.eos_token_id}
    if (Path(folder) / GENERATION_CONFIG).is_file():
        listed = GenerationConfig.from_pretrained(folder).eos_token_id
        found.update(listed if isinstance(listed, Iterable) else [listed])
    return frozenset(int(token) for token in found if token is not None)
