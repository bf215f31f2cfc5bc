"""The tokens that end a text: the tokenizer's, and those of the model's generation settings. Reads a model folder."""

import json
from collections.abc import Iterable
from pathlib import Path

from transformers import GenerationConfig, PreTrainedTokenizerBase

GENERATION_CONFIG, CONFIG = "generation_config.json", "config.json"


def end_tokens(folder: Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Numbers of the end tokens. A chat model lists its end of a turn beside its end of a text: in its generation settings, or
    without them in its configuration, where transformers and vLLM then look, too. Raises OSError, ValueError."""
    found = {tokenizer.eos_token_id}
    name = GENERATION_CONFIG if (folder / GENERATION_CONFIG).is_file() else CONFIG
    try:
        if name == GENERATION_CONFIG:
            listed = GenerationConfig.from_pretrained(folder).eos_token_id
        else:  # what it says itself: a family's default may be any token of this vocabulary
            listed = json.loads((folder / CONFIG).read_text()).get("eos_token_id")
        found.update(int(token) for token in (listed if isinstance(listed, Iterable) else [listed]) if token is not None)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{name} says no end tokens: {error}") from None
    return frozenset(int(token) for token in found if token is not None)
