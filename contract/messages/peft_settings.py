"""What an adapter_config.json of PEFT says of plain LoRA. Service and worker read it by the same rules. Knows no tensors.

Refuses what PEFT can express and Motet cannot do (DoRA, rank patterns, modules saved whole, biases), and adapters that are to
be added to a base which their initialisation changed.
"""

import json
from collections.abc import Mapping
from typing import Any

from contract.job_config import MAX_ALPHA, MAX_RANK, MODULES
from contract.model_types import JOINED_MODULES
from contract.strict import Message

_MODULES = (*MODULES, *JOINED_MODULES)  # an export of a base that joins some has the joined ones
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
MAX_LORA_ALPHA = MAX_ALPHA * MAX_RANK**0.5  # as a job's plain_alpha, which its export has
_YES_OR_NO: tuple[Any, ...] = (None, False, True)
_OFF: tuple[Any, ...] = (None, False)
_EMPTY: tuple[Any, ...] = (None, [], {})
_PLAIN: Mapping[str, tuple[Any, ...]] = {  # settings that change what an adapter is, and their values in plain LoRA
    "peft_type": ("LORA",),
    "bias": (None, "none"),
    **dict.fromkeys(("use_dora", "fan_in_fan_out", "lora_bias", "use_qalora", "use_bdlora"), _OFF),
    **dict.fromkeys(("modules_to_save", "layers_to_transform", "trainable_token_indices", "target_parameters"), _EMPTY),
    **dict.fromkeys(("layer_replication", "alora_invocation_tokens", "arrow_config"), _EMPTY),
    **dict.fromkeys(("kasa_config", "monteclora_config"), _EMPTY),
}
_INITIAL = (None, True, False, "gaussian", "orthogonal", "eva")  # init_lora_weights that leave the base as it is


class NotPlainLora(ValueError):
    """The configuration is damaged, or not of plain LoRA. `setting` is the wrong one, None where no single one is; the message
    goes on a sentence about the adapter."""

    def __init__(self, message: str, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class PeftSettings(Message):
    """Plain LoRA: B A x is multiplied by alpha / rank, or by alpha / sqrt(rank) with `rslora`. target_modules: as the
    configuration lists them; None where it has a pattern."""

    rank: int
    alpha: float
    rslora: bool = False
    target_modules: list[str] | None = None

    @property
    def scale(self) -> float:
        return self.alpha / (self.rank**0.5 if self.rslora else self.rank)

    @classmethod
    def read(cls, content: bytes) -> "PeftSettings":
        """Parse an adapter_config.json. Raises NotPlainLora."""
        try:
            config = json.loads(content)
        except RecursionError:
            raise NotPlainLora(f"has an {CONFIG_FILE} that is nested too deeply") from None
        except ValueError as error:
            raise NotPlainLora(f"has an {CONFIG_FILE} that cannot be read: {error}") from None
        if not isinstance(config, dict):
            raise NotPlainLora(f"has an {CONFIG_FILE} that is no object")
        for name, harmless in _PLAIN.items():
            if config.get(name, harmless[0]) not in harmless:
                raise _unlike(config, name, "only plain LoRA can be gone on with")
        if config.get("init_lora_weights") not in _INITIAL:
            way = "save it with PEFT's path_initial_model_for_weight_conversion, which makes it plain LoRA, or begin without it"
            raise _unlike(config, "init_lora_weights", f"it may have changed the base, which is the unchanged one here; {way}")
        rslora = config.get("use_rslora")
        if rslora not in _YES_OR_NO:
            raise _unlike(config, "use_rslora", "it must be true or false")
        rank, alpha = config.get("r"), config.get("lora_alpha")
        modules = _listed(config)
        times = max((len(JOINED_MODULES[name]) for name in modules or () if name in JOINED_MODULES), default=1)
        most, most_alpha = times * MAX_RANK, times * MAX_LORA_ALPHA
        if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= most:
            raise _unlike(config, "r", f"it must be a whole number from 1 to {most}")
        if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < alpha <= most_alpha:
            raise _unlike(config, "lora_alpha", f"it must be a number above 0, at most {most_alpha:g}")
        for name, usual, of in (("rank_pattern", rank, "rank"), ("alpha_pattern", alpha, "alpha")):
            pattern = config.get(name) or {}
            if not isinstance(pattern, dict) or any(own != usual for own in pattern.values()):
                raise _unlike(config, name, f"all its matrices must have one {of}, {usual}")
        return cls(rank=rank, alpha=alpha, rslora=bool(rslora), target_modules=modules)


def _listed(config: Mapping[str, Any]) -> list[str] | None:
    """The modules that the configuration lists, each once and in the usual order."""
    wanted = config.get("target_modules")
    if not isinstance(wanted, list):
        return None
    named = {str(one).rpartition(".")[2] for one in wanted}
    if unknown := sorted(named - set(_MODULES)):
        raise _unlike(config, "target_modules", f"{unknown[0]!r:.40} is none of {', '.join(_MODULES)}")
    return [module for module in _MODULES if module in named]


def _unlike(config: Mapping[str, Any], name: str, rule: str) -> NotPlainLora:
    return NotPlainLora(f"has {name} = {config.get(name)!r:.80} in its {CONFIG_FILE}; {rule}", name)
