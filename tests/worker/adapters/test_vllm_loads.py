"""Our exported adapters against vLLM's own checks, and docker-compose.yml's `serve` against vLLM's own options.

vLLM lives in an environment of its own, which `python -m tests.worker.adapters.vllm_environment FOLDER` makes.
"""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.job_config import MAX_RANK, JobConfig
from service.adapters.adapter_readme import vllm_rank
from tests.worker.adapters.vllm_environment import VERSION
from tests.worker.model import tiny
from worker.adapters.joined_adapters import by_stored_name, joined, rank_factor
from worker.adapters.peft_export import export_peft
from worker.model.arena import Arena
from worker.model.backbone import Backbone, targets_of

ROOT = Path(__file__).parents[3]
PYTHON = os.environ.get("MOTET_TEST_VLLM")
CONFIGS = tiny.configs()
FAMILIES = {
    "llama": "LlamaForCausalLM",
    "llama_biases": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}
ODD: dict[str, Any] = {"rank": 5, "alpha": 7.5, "target_modules": ["v_proj", "down_proj"]}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PYTHON is None,
        reason=f"adapters against vLLM {VERSION}: make its environment with python -m tests.worker.adapters.vllm_environment "
        "FOLDER and set MOTET_TEST_VLLM=FOLDER/bin/python",
    ),
]


def exported(folder: Path, family: str, **changes: Any) -> tuple[dict[str, Any], JobConfig, dict[str, list[list[int]]]]:
    """What to ask of vLLM, the adapter's configuration, and its shapes of A and B by module, as its files have them."""
    said = {"learning_rate": 1e-3, "rank": 8, "alpha": 16.0, "batch_size": 1, "seed": 0, **changes}
    config = JobConfig.model_validate(said)
    backbone = Backbone.of(tiny.model(CONFIGS[family]))
    arena = Arena(backbone.targets, MAX_RANK)
    weights = arena.weights(arena.attach(config.rank, config.plain_alpha))
    export_peft(folder, backbone.targets, weights, config=config, base_model="team/base")
    matrices = by_stored_name(target for target in backbone.targets if target.module in config.target_modules)
    times = rank_factor(part for parts in matrices.values() for part in parts)
    kept = {name: joined(parts, weights, config.rank, times) for name, parts in matrices.items()}
    asked = {
        **{"parent": str(folder.parent), "name": folder.name, "base": "team/base"},
        **{
            "family": family,
            "module": family.partition("_")[0],
            "class": FAMILIES[family],
            "max_rank": vllm_rank(times * config.rank),
        },
    }
    return asked, config, {name: [list(a.shape), list(b.shape)] for name, (a, b) in kept.items()}


def asked_of_vllm(adapters: list[dict[str, Any]], serve: list[str]) -> dict[str, Any]:
    assert PYTHON is not None
    script = Path(__file__).with_name("vllm_checks.py")
    question = json.dumps({"adapters": adapters, "serve": serve})
    ended = subprocess.run([PYTHON, script], input=question, capture_output=True, text=True, env={"HOME": os.environ["HOME"]})
    assert ended.returncode == 0, ended.stderr[-4000:]
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def serve_arguments() -> list[str]:
    """The words that docker-compose.yml gives to `vllm serve` where only the base is set."""
    (script,) = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["serve"]["command"]
    script = re.sub(r"\$\$\{\w+:\?[^}]*\}", "team/base", script)
    words = shlex.split(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", script))
    assert words[:3] == ["exec", "vllm", "serve"]
    return words[3:]


@pytest.mark.timeout(600)
def test_vllm_finds_takes_and_reads_every_adapter(tmp_path: Path) -> None:
    made = [exported(tmp_path / family, family) for family in FAMILIES]
    made += [exported(tmp_path / f"rank-{rank}", "llama", rank=rank, alpha=2.0 * rank) for rank in (1, 24, MAX_RANK)]
    made += [exported(tmp_path / "odd", "qwen3", **ODD), exported(tmp_path / "stable", "llama", rslora=True, dropout=0.1)]
    refused = made[0][0]
    wrong = [refused | {"base": "team/other"}, exported(tmp_path / "large", "llama", rank=17)[0] | {"max_rank": 16}]
    answer = asked_of_vllm([*(asked for asked, _, _ in made), *wrong], serve_arguments())
    assert answer["version"] == VERSION
    for (asked, config, shapes), found in zip(made, answer["adapters"], strict=False):
        assert "error" not in found, (asked, found)
        assert found["supports_lora"]
        times = rank_factor(t for t in targets_of(CONFIGS[asked["family"]]) if t.module in config.target_modules)
        assert (found["rank"], found["scale"]) == (times * config.rank, pytest.approx(config.scale)), asked
        assert found["shapes"] == shapes, asked
    other, large = answer["adapters"][len(made) :]
    assert "finds no adapter" in other["error"], "the base's name is compared, so `serve` must be given it"
    assert "LoRA rank 17 is greater than max_lora_rank 16" in large["error"]
    assert answer["serve"] == {
        **{"model_tag": "team/base", "enable_lora": True, "port": 8000},
        **{"max_lora_rank": 64, "max_loras": 8, "max_cpu_loras": 64},
    }
