"""The tokens that end a text: the tokenizer's, and those of the model's generation settings. Reads a model folder."""

from collections.abc import Iterable
from pathlib import Path

from transformers import GenerationConfig, PreTrainedTokenizerBase

GENERATION_CONFIG = "generation_config.json"


def end_tokens(folder: Path | str, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Numbers of the end tokens. A chat model lists its end of a turn beside its end of a text. Raises OSError, ValueError."""
    found = {tokenizer.eos_token_id}
    if (Path(folder) / GENERATION_CONFIG).is_file():
        try:
            listed = GenerationConfig.from_pretrained(folder).eos_token_id
            found.update(int(token) for token in (listed if isinstance(listed, Iterable) else [listed]) if token is not None)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{GENERATION_CONFIG} says no end tokens: {error}") from None
    return frozenset(int(token) for token in found if token is not None)
