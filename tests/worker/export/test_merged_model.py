"""A merged model against PEFT's merge_and_unload in float32: the same bits once rounded to bf16, for every family."""

import json
import shutil
from pathlib import Path

import peft
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from contract.job_config import JobConfig
from tests.worker.corpus import EXAMPLE_BASE
from tests.worker.model import tiny
from worker.adapters.peft_export import export_peft
from worker.export.merged_model import MergedModel, MergeError
from worker.model.arena import Arena
from worker.model.backbone import Backbone

FAMILIES = ["llama", "llama_biases", "qwen2", "qwen3", "mistral", "gemma2", "gemma2_uncapped", "gemma3"]
FAMILIES += ["olmo2_biases", "phi3", "phi3_part"]


def base_of(name: str, folder: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    made = tiny.model(tiny.configs()[name]).to(dtype)
    made.save_pretrained(folder, max_shard_size="30KB")
    (folder / "tokenizer.json").write_text('{"a tokenizer": true}')
    (folder / "notes.txt").write_text("nothing that a model needs")
    return folder


def adapter_of(name: str, folder: Path, rank: int = 5, **changes: object) -> dict[str, Path]:
    config = JobConfig.model_validate(
        {"learning_rate": 1e-3, "rank": rank, "alpha": 1.5 * rank, "batch_size": 1, "seed": 0, **changes}
    )
    arena = Arena(Backbone.of(tiny.model(tiny.configs()[name])).targets, rank)
    rows = torch.randn(rank, arena.layout.width, generator=torch.Generator().manual_seed(3))
    paths = export_peft(folder, arena.layout.targets, arena.layout.split(rows), config=config, base_model="team/base")
    return {path.name: path for path in paths}


def merged(base: Path, adapter: dict[str, Path], folder: Path, shard_bytes: int = 30_000) -> MergedModel:
    model = MergedModel(base, adapter, shard_bytes)
    folder.mkdir()
    for shard in model.shards:
        model.write(shard, folder / shard.name, lambda: None)
    for name, content in model.texts().items():
        (folder / name).write_bytes(content)
    return model


def by_peft(base: Path, adapter: Path) -> dict[str, torch.Tensor]:
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return peft.PeftModel.from_pretrained(plain, adapter).merge_and_unload().to(torch.bfloat16).state_dict()


@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_loads_the_bits_of_pefts_merge(name: str, tmp_path: Path) -> None:
    base = base_of(name, tmp_path / "base")
    adapter = adapter_of(name, tmp_path / "adapter")
    model = merged(base, adapter, tmp_path / "merged")
    assert len(model.shards) > 2
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto")
    assert loaded.dtype == torch.bfloat16
    expected, found = by_peft(base, tmp_path / "adapter"), loaded.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[tensor], expected[tensor]) for tensor in expected)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype="auto").state_dict()
    changed = {tensor for tensor in plain if not torch.equal(plain[tensor], found[tensor])}
    assert changed == {tensor for tensor in plain if "_proj.weight" in tensor}


@pytest.mark.parametrize("changes", [{"rslora": True}, {"target_modules": ["v_proj", "down_proj"]}])
def test_rank_stabilised_and_partial_adapters(changes: dict, tmp_path: Path) -> None:
    base, adapter = base_of("llama", tmp_path / "base"), adapter_of("llama", tmp_path / "adapter", 6, **changes)
    merged(base, adapter, tmp_path / "merged")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto").state_dict()
    expected = by_peft(base, tmp_path / "adapter")
    assert all(torch.equal(found[tensor], expected[tensor]) for tensor in expected)


def test_an_adapter_that_says_use_rslora_is_scaled_by_the_root_of_its_rank(tmp_path: Path) -> None:
    base, adapter = base_of("qwen3", tmp_path / "base"), adapter_of("qwen3", tmp_path / "adapter", 6)
    said = json.loads(adapter["adapter_config.json"].read_text())
    adapter["adapter_config.json"].write_text(json.dumps(said | {"use_rslora": True}))
    merged(base, adapter, tmp_path / "merged")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto").state_dict()
    expected = by_peft(base, tmp_path / "adapter")
    assert all(torch.equal(found[tensor], expected[tensor]) for tensor in expected)


def test_a_base_in_float32_is_summed_before_it_is_rounded(tmp_path: Path) -> None:
    base, adapter = base_of("llama", tmp_path / "base", torch.float32), adapter_of("llama", tmp_path / "adapter")
    model = merged(base, adapter, tmp_path / "merged", 10**9)
    assert [shard.name for shard in model.shards] == ["model.safetensors"]
    assert not (tmp_path / "merged" / "model.safetensors.index.json").exists()
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto").state_dict()
    expected = by_peft(base, tmp_path / "adapter")
    assert found["model.embed_tokens.weight"].dtype == torch.bfloat16
    assert all(torch.equal(found[tensor], expected[tensor]) for tensor in expected)


def test_the_folder_is_as_save_pretrained_writes_it(tmp_path: Path) -> None:
    base, adapter = base_of("llama", tmp_path / "base"), adapter_of("llama", tmp_path / "adapter")
    model = merged(base, adapter, tmp_path / "merged")
    theirs = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size=30_000)
    ours_index, their_index = (
        json.loads((tmp_path / folder / "model.safetensors.index.json").read_text()) for folder in ("merged", "theirs")
    )
    assert ours_index["metadata"] == their_index["metadata"]
    assert ours_index["weight_map"].keys() == their_index["weight_map"].keys()
    assert "lm_head.weight" not in ours_index["weight_map"], "it is tied"
    ours_config, base_config = (json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("merged", "base"))
    assert ours_config == base_config
    with safe_open(tmp_path / "merged" / model.shards[0].name, framework="pt") as shard:
        assert shard.metadata() == {"format": "pt"}
    assert (tmp_path / "merged" / "tokenizer.json").read_text() == '{"a tokenizer": true}'
    assert not (tmp_path / "merged" / "notes.txt").exists()
    sizes = [(tmp_path / "merged" / shard.name).stat().st_size for shard in model.shards]
    assert max(sizes) < 32_000


def test_a_merge_that_begins_anew_writes_the_same_bytes(tmp_path: Path) -> None:
    base, adapter = base_of("gemma3", tmp_path / "base"), adapter_of("gemma3", tmp_path / "adapter")
    first, second = (merged(base, adapter, tmp_path / name) for name in ("one", "two"))
    assert first.texts() == second.texts()
    for shard in first.shards:
        assert (tmp_path / "one" / shard.name).read_bytes() == (tmp_path / "two" / shard.name).read_bytes()


def test_what_cannot_be_merged_is_said(tmp_path: Path) -> None:
    base, adapter = base_of("llama", tmp_path / "base"), adapter_of("llama", tmp_path / "adapter")
    tensors = load_file(adapter["adapter_model.safetensors"])
    with pytest.raises(MergeError, match=r"the adapter holds base_model\S+, which is no matrix of the base|of shape"):
        MergedModel(base_of("mistral", tmp_path / "other"), adapter)
    name = "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"
    save_file(tensors | {name: torch.full_like(tensors[name], 3e38)}, adapter["adapter_model.safetensors"])
    model = MergedModel(base, adapter)
    with pytest.raises(MergeError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is not finite once it is merged"):
        model.write(model.shards[0], tmp_path / "shard", lambda: None)
    (base / "model.safetensors.index.json").unlink()
    with pytest.raises(MergeError, match=r"the base: .* is no model folder"):
        MergedModel(base, adapter)
    assert AutoConfig.from_pretrained(base).model_type == "llama"


def test_templates_beside_the_default_one_are_taken_over(tmp_path: Path) -> None:
    base, adapter = base_of("llama", tmp_path / "base"), adapter_of("llama", tmp_path / "adapter")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(EXAMPLE_BASE / name, base)
    (base / "chat_template.jinja").write_text("plain")
    (base / "additional_chat_templates").mkdir()
    (base / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    merged(base, adapter, tmp_path / "merged")
    theirs, ours = (AutoTokenizer.from_pretrained(folder) for folder in (base, tmp_path / "merged"))
    assert ours.chat_template == theirs.chat_template == {"default": "plain", "tool_use": "with tools"}
    assert all("/" not in name for name in MergedModel(base, adapter).texts())


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("additional_chat_templates/tool_use.jinja", b"\xff", "is not UTF-8"),
        ("chat_template.jinja", b"\xff", "is not UTF-8"),
        ("tokenizer_config.json", b"{", "is not JSON"),
        ("tokenizer_config.json", b"[]", "is no JSON object"),
    ],
)
def test_a_file_of_the_base_that_cannot_be_read_is_named(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    base, adapter = base_of("llama", tmp_path / "base"), adapter_of("llama", tmp_path / "adapter")
    (base / "additional_chat_templates").mkdir()
    (base / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    (base / name).write_bytes(content)
    with pytest.raises(MergeError, match=f"the base: {name} {says}"):
        MergedModel(base, adapter).texts()
