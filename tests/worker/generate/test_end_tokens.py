"""End tokens: the tokenizer's and those of the generation settings or of the configuration, one or several."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig

from tests.worker.corpus import EXAMPLE_BASE
from worker.generate.end_tokens import end_tokens


@pytest.mark.parametrize(("listed", "more"), [(None, set()), (7, {7}), ([7, 9], {7, 9})])
def test_end_tokens_are_the_tokenizers_and_the_generation_settings(
    listed: int | list[int] | None, more: set[int], tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLE_BASE)
    LlamaConfig(eos_token_id=5).save_pretrained(tmp_path)
    GenerationConfig(eos_token_id=listed).save_pretrained(tmp_path)
    assert end_tokens(tmp_path, tokenizer) == {tokenizer.eos_token_id} | more


@pytest.mark.parametrize(("listed", "more"), [(None, set()), (7, {7}), ([7, 9], {7, 9})])
def test_without_generation_settings_they_are_those_of_the_configuration(
    listed: int | list[int] | None, more: set[int], tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLE_BASE)
    LlamaConfig(eos_token_id=listed).save_pretrained(tmp_path)
    assert end_tokens(tmp_path, tokenizer) == {tokenizer.eos_token_id} | more


def test_a_familys_own_end_token_is_none_of_a_configuration_that_names_none(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLE_BASE)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert end_tokens(tmp_path, tokenizer) == {tokenizer.eos_token_id}


@pytest.mark.parametrize("listed", ["</s>", {"id": "x"}])
def test_what_is_no_token_is_said(listed: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": listed}))
    with pytest.raises(ValueError, match=r"config\.json says no end tokens"):
        end_tokens(tmp_path, AutoTokenizer.from_pretrained(EXAMPLE_BASE))
