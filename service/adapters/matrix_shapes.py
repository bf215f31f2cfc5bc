"""The shapes of the matrices that adapters may change, as a base's config.json says them. Knows no folder and no weights."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from contract.job_config import MODULES
from contract.model_types import joined_parts
from service.http.json_objects import json_object
from service.http.problems import invalid_field

_MOST = 2**31 - 1
_MOST_LAYERS = 4096
_HEAD_SIZES = {"gemma2": 256, "gemma3_text": 256, "qwen3": 128}  # of model types that do not derive it from the hidden size
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj")


@dataclass(frozen=True)
class MatrixShapes:
    """layers: their number. modules: inputs and outputs of each one's matrix, the same in every layer. parts: of those that
    join several modules, whose outputs follow each other in its rows."""

    layers: int
    modules: Mapping[str, tuple[int, int]]
    parts: Mapping[str, tuple[str, ...]]

    def own_modules(self, modules: Sequence[str]) -> list[str]:
        """The modules that these matrices are, or join, in the usual order."""
        held = {part for module in modules for part in self.parts.get(module, (module,))}
        return [module for module in MODULES if module in held]

    def matrices(self) -> Iterator[tuple[str, str, int, int]]:
        """Path in the transformers model, module, inputs and outputs of every matrix."""
        for layer in range(self.layers):
            for module, (inputs, outputs) in self.modules.items():
                part = "self_attn" if module in _ATTENTION else "mlp"
                yield f"model.layers.{layer}.{part}.{module}", module, inputs, outputs

    @classmethod
    def read(cls, content: bytes, field: str) -> Self:
        """Parse a config.json. Raises Invalid, which names `field`, where it does not say them."""
        config = json_object(content, "config.json", field)
        hidden, inner = (_number(config, name, field) for name in ("hidden_size", "intermediate_size"))
        heads, layers = _number(config, "num_attention_heads", field), _number(config, "num_hidden_layers", field)
        if layers > _MOST_LAYERS:
            raise invalid_field(field, "config_incomplete", f"its config.json has more than {_MOST_LAYERS} layers")
        pairs = _number(config, "num_key_value_heads", field, heads)
        size = _number(config, "head_dim", field, _HEAD_SIZES.get(str(config.get("model_type")), hidden // heads))
        sizes: dict[str, tuple[int, int]] = {
            "q_proj": (hidden, heads * size),
            **dict.fromkeys(("k_proj", "v_proj"), (hidden, pairs * size)),
            "o_proj": (heads * size, hidden),
            **dict.fromkeys(("gate_proj", "up_proj"), (hidden, inner)),
            "down_proj": (inner, hidden),
        }
        joined = joined_parts(str(config.get("model_type")))
        apart = set(MODULES).difference(*joined.values())
        modules: dict[str, tuple[int, int]] = {module: sizes[module] for module in MODULES if module in apart}
        for whole, parts in joined.items():
            modules[whole] = sizes[parts[0]][0], sum(sizes[part][1] for part in parts)
        return cls(layers, modules, joined)


def _number(config: Mapping[str, Any], name: str, field: str, usual: int | None = None) -> int:
    value = config.get(name)
    if value is None and usual is not None:
        return usual
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MOST:
        raise invalid_field(field, "config_incomplete", f"its config.json has no usable {name!r}")
    return value
