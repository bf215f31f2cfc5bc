"""An adapter as a PEFT folder: adapter_config.json and adapter_model.safetensors. Knows tensors and names; no jobs, no storage.

PEFT, vLLM, SGLang and TGI read it as it is: LoRA (Hu et al. 2021) on the listed modules, no bias, scale alpha / r.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from contract.job_config import JobConfig
from contract.messages.peft_settings import CONFIG_FILE, WEIGHTS_FILE
from worker.adapters.joined_adapters import by_stored_name, joined, rank_factor
from worker.data.safetensors_writer import write_tensors
from worker.model.arena_layout import Target


def export_peft(
    folder: Path,
    targets: Iterable[Target],
    weights: Mapping[str, tuple[Tensor, Tensor]],
    *,
    config: JobConfig,
    base_model: str,
) -> list[Path]:
    """Write `weights`, {target name: (A [r, in], B [out, r])}, to `folder` (made if missing); returns the files, written whole.

    Only the targets of `config` are written, joined where the base's files join them (joined_adapters.py). `base_model` is the
    name PEFT notes as the base. Raises ValueError where a target is missing or has another shape.
    """
    targets = [target for target in targets if target.module in config.target_modules]
    rank = config.rank
    for target in targets:
        if target.name not in weights:
            raise ValueError(f"the adapter has no weights for {target.name}")
        a_RK, b_NR = weights[target.name]
        _check(target, "A", a_RK, (rank, target.in_features))
        _check(target, "B", b_NR, (target.out_features, rank))
    folder.mkdir(parents=True, exist_ok=True)
    matrices = by_stored_name(targets)
    times, tensors = rank_factor(targets), dict[str, Tensor]()
    for name, parts in matrices.items():
        factors = joined(parts, weights, rank, times)
        for factor, tensor in zip("AB", factors, strict=True):
            tensors[f"base_model.model.{name}.lora_{factor}.weight"] = tensor
    config_path, weights_path = folder / CONFIG_FILE, folder / WEIGHTS_FILE
    said = _config(matrices, config, times, base_model)
    config_path.write_text(json.dumps(said, indent=2, sort_keys=True) + "\n")
    write_tensors(tensors, weights_path, {"format": "pt"})
    return [config_path, weights_path]


def _check(target: Target, name: str, tensor: Tensor, shape: tuple[int, int]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} of {target.name} has shape {tuple(tensor.shape)}; it should have {shape}")


def _config(matrices: Iterable[str], config: JobConfig, times: int, base_model: str) -> dict[str, object]:
    # not `use_rslora`, which SGLang ignores: it would serve the adapter sqrt(r) times too weak
    alpha = config.plain_alpha * times
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": config.rank * times,
        "lora_alpha": int(alpha) if alpha.is_integer() else alpha,
        "lora_dropout": config.dropout,
        "target_modules": sorted({name.rsplit(".", 1)[-1] for name in matrices}),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "layers_to_transform": None,
        "layers_pattern": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "init_lora_weights": True,
    }
