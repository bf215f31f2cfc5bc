"""The supported families of base models, by the model_type of their config.json. worker/model/families.py implements them."""

from collections.abc import Mapping
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
