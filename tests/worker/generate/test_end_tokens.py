"""End tokens: the tokenizer's and those of the generation settings, one or several."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, GenerationConfig

from tests.worker.corpus import EXAMPLE_BASE
from worker.generate.end_tokens import end_tokens


@pytest.mark.parametrize(("listed", "more"), [(None, set()), (7, {7}), ([7, 9], {7, 9})])
def test_end_tokens_are_the_tokenizers_and_the_generation_settings(
    listed: int | list[int] | None, more: set[int], tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLE_BASE)
    assert end_tokens(tmp_path, tokenizer) == {tokenizer.eos_token_id}
    GenerationConfig(eos_token_id=listed).save_pretrained(tmp_path)
    assert end_tokens(tmp_path, tokenizer) == {tokenizer.eos_token_id} | more
