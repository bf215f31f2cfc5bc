"""The supported families of base models, by the model_type of their config.json. worker/model/families.py implements them."""

from collections.abc import Collection, Mapping
from types import MappingProxyType

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2", "phi3")
_NONE: Mapping[str, tuple[str, ...]] = MappingProxyType({})
_JOINED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "phi3": {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
}
JOINED_MODULES = {name: parts for joined in _JOINED.values() for name, parts in joined.items()}  # of all families


def joined_parts(model_type: str) -> Mapping[str, tuple[str, ...]]:
    """The modules of the family that are one matrix in its files, PEFT and vLLM, by that one's name; the first rows are the
    first module's."""
    return _JOINED.get(model_type, _NONE)


def exported_ranks(model_type: str, modules: Collection[str]) -> int:
    """How many times a job's rank its adapter has as a PEFT folder: as many as the modules trained that one matrix joins, each
    of which has ranks of its own there."""
    return max((sum(part in modules for part in parts) for parts in joined_parts(model_type).values()), default=1) or 1
