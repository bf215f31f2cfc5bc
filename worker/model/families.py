"""The families of base models: one table of how each one's decoder block differs, and what of a configuration is refused.

Names are those of transformers' configurations. Knows no weights and no kernels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from transformers import PreTrainedConfig

STATIC_ROPES = ("default", "linear", "llama3", "yarn")
LONGROPE = "longrope"  # up to the length it was trained at, where all layers share one table
SLIDING = "sliding_attention"
LAYER_TYPES = (SLIDING, "full_attention")


class UnsupportedModelError(Exception):
    """The base cannot be run here; the message says what can."""


@dataclass(frozen=True)
class Family:
    """How a block is built, and which fields of its configuration say so.

    activation: of the MLP's gate, in the field `activation_field`; no other is run.
    windows: which layers attend to the last `sliding_window` tokens only.
    biases: as `attention_bias` and `mlp_bias` say ("configured"), or the first alone ("attention"), or none, or those of
    q, k and v ("query").
    query_norms: every head's q and k are normed; whole_norms: over all heads at once.
    centred_norms: a norm's weight is stored less 1. pre_norms: norms are before attention and the MLP. post_norms: norms follow
    them, before the sum.
    rope_by_layer: layers with a window have rotary frequencies of their own.
    scaled_embedding: by the root of the hidden size.
    query_scale, attention_cap, logit_cap: fields whose number replaces the head size in the scale of q k^T (1 / its root), caps
    attention's scores, caps the logits (both by tanh).
    partial_rotary: rotary may turn the first part of a head's numbers alone.
    """

    activation: str = "silu"
    activation_field: str = "hidden_act"
    windows: Literal["none", "all", "by layer"] = "by layer"
    biases: Literal["configured", "attention", "none", "query"] = "attention"
    query_norms: bool = False
    whole_norms: bool = False
    centred_norms: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    rope_by_layer: bool = False
    scaled_embedding: bool = False
    query_scale: str | None = None
    attention_cap: str | None = None
    logit_cap: str | None = None
    partial_rotary: bool = False

    @property
    def norms(self) -> dict[str, str]:
        """The block's norms by their names in transformers."""
        if not self.post_norms:
            return {"norm_attention": "input_layernorm", "norm_mlp": "post_attention_layernorm"}
        behind = {"norm_attended": "post_attention_layernorm", "norm_mixed": "post_feedforward_layernorm"}
        before = {"norm_attention": "input_layernorm", "norm_mlp": "pre_feedforward_layernorm"}
        return before | behind if self.pre_norms else behind

    @property
    def head_norms(self) -> dict[str, str]:
        """The norms of q and k, by their names in transformers."""
        return {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"} if self.query_norms else {}

    def head_norm_sizes(self, config: PreTrainedConfig) -> dict[str, int]:
        """Numbers of the weight of each of them."""
        heads = {"q_norm": config.num_attention_heads, "k_norm": config.num_key_value_heads}
        return {name: head_size(config) * (heads[name] if self.whole_norms else 1) for name in self.head_norms}

    def biased(self, config: PreTrainedConfig) -> frozenset[str]:
        """The modules that have a bias."""
        if self.biases in ("none", "query"):
            return frozenset({"q_proj", "k_proj", "v_proj"} if self.biases == "query" else ())
        attention: frozenset[str] = frozenset()
        if getattr(config, "attention_bias", False):
            attention = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
        if self.biases == "attention" or not getattr(config, "mlp_bias", False):
            return attention
        return attention | {"gate_proj", "up_proj", "down_proj"}

    def window(self, config: PreTrainedConfig, layer: int) -> int | None:
        """Tokens that a layer attends to, the token itself included; None: all."""
        if self.windows == "none" or (self.windows == "by layer" and config.layer_types[layer] != SLIDING):
            return None
        window: int | None = config.sliding_window
        return window

    def number(self, config: PreTrainedConfig, field: str | None) -> float | None:
        """The configuration's value in an optional field; None for a family without the field."""
        return None if field is None else getattr(config, field)

    def scale(self, config: PreTrainedConfig) -> float:
        """The factor of q k^T."""
        return float((self.number(config, self.query_scale) or head_size(config)) ** -0.5)

    def rope_kind(self, config: PreTrainedConfig, layer: int) -> str:
        """The kind of a layer's rotary table; "" where all layers share one."""
        return str(config.layer_types[layer]) if self.rope_by_layer else ""

    def rope_kinds(self, config: PreTrainedConfig) -> tuple[str, ...]:
        """All kinds of rotary tables, in order."""
        return tuple(sorted({self.rope_kind(config, layer) for layer in range(config.num_hidden_layers)}))


_GEMMA2 = Family(
    activation="gelu_pytorch_tanh",
    activation_field="hidden_activation",
    centred_norms=True,
    post_norms=True,
    scaled_embedding=True,
    query_scale="query_pre_attn_scalar",
    attention_cap="attn_logit_softcapping",
    logit_cap="final_logit_softcapping",
)
FAMILIES: Mapping[str, Family] = {
    "llama": Family(windows="none", biases="configured"),
    "mistral": Family(windows="all", biases="none"),
    "qwen2": Family(biases="query"),
    "qwen3": Family(query_norms=True),
    "gemma2": _GEMMA2,
    "gemma3_text": replace(_GEMMA2, attention_cap=None, rope_by_layer=True, query_norms=True),
    "olmo2": Family(windows="none", query_norms=True, whole_norms=True, pre_norms=False, post_norms=True),
    "phi3": Family(windows="all", biases="none", partial_rotary=True),
}


def family_of(config: PreTrainedConfig) -> Family:
    """The family of a configuration. Raises UnsupportedModelError, which says what works, for what the block does not do."""
    if config.model_type not in FAMILIES:
        works = ", ".join(FAMILIES)
        raise UnsupportedModelError(f"model_type '{config.model_type}' is not supported; what works: {works}")
    family = FAMILIES[config.model_type]
    activation = getattr(config, family.activation_field)
    if activation != family.activation:
        raise UnsupportedModelError(
            f"{family.activation_field} '{activation}' is not supported; what works: {family.activation}"
        )
    for field in (family.query_scale, family.attention_cap, family.logit_cap):
        number = family.number(config, field)
        if number is not None and not number > 0:
            raise UnsupportedModelError(f"{field} {number} is not supported; what works: a number above 0")
    strange = set(config.layer_types) - set(LAYER_TYPES) if family.windows == "by layer" else ()
    if strange:
        raise UnsupportedModelError(f"layer_types '{min(strange)}' is not supported; what works: {', '.join(LAYER_TYPES)}")
    windows = (family.window(config, layer) for layer in range(config.num_hidden_layers))
    if any(window is not None and window < 1 for window in windows):
        raise UnsupportedModelError(f"sliding_window {config.sliding_window} is not supported; what works: 1 or more, or null")
    kinds = STATIC_ROPES if family.rope_by_layer else (*STATIC_ROPES, LONGROPE)
    for rope in _ropes(family, config):
        if rope["rope_type"] not in kinds:
            raise UnsupportedModelError(f"rope_type '{rope['rope_type']}' is not supported; what works: {', '.join(kinds)}")
    if family.biases == "none" and getattr(config, "attention_bias", False):
        # transformers leaves such biases out, vLLM adds them: an adapter fits one of them
        raise UnsupportedModelError(
            f"attention_bias is not supported for model_type '{config.model_type}'; what works: false, or leave it out"
        )
    if getattr(config, "use_bidirectional_attention", None):
        raise UnsupportedModelError("use_bidirectional_attention is not supported; what works: causal attention")
    if not getattr(config, "is_causal", True):
        raise UnsupportedModelError("is_causal false is not supported; what works: causal attention")
    for field in ("attention_dropout", "resid_pdrop", "embd_pdrop"):
        if getattr(config, field, 0):  # transformers drops them in training
            raise UnsupportedModelError(
                f"{field} {getattr(config, field)} is not supported; what works: 0, and an adapter's own dropout"
            )
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    if key_heads < 1 or heads % key_heads:
        raise UnsupportedModelError(
            f"num_key_value_heads {key_heads} is not supported; what works: a divisor of num_attention_heads {heads}"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise UnsupportedModelError("quantised checkpoints are not supported; use the original weights")
    return family


def head_size(config: PreTrainedConfig) -> int:
    size: int | None = getattr(config, "head_dim", None)
    return size or config.hidden_size // config.num_attention_heads


def turned_size(config: PreTrainedConfig) -> int:
    """How many of a head's numbers rotary turns, the first. Raises UnsupportedModelError."""
    size = head_size(config)
    if not FAMILIES[config.model_type].partial_rotary:
        return size
    part = config.rope_parameters.get("partial_rotary_factor", 1.0)
    turned = int(size * part) if isinstance(part, int | float) and 0 < part <= 1 else 0
    if turned < 2 or turned % 2 or size % 2:
        raise UnsupportedModelError(
            f"partial_rotary_factor {part} is not supported; what works: a part of a head's {size} numbers that is even"
        )
    return turned


def longest_row(config: PreTrainedConfig) -> int:
    """Tokens of the longest sequence. Longrope has other angles for sequences that are longer than it was trained at, which
    change every token before; such are not run."""
    most: int = config.max_position_embeddings
    rope = config.rope_parameters
    if rope.get("rope_type") == LONGROPE:
        trained = rope.get("original_max_position_embeddings")
        if not isinstance(trained, int) or trained < 1:
            raise UnsupportedModelError(f"original_max_position_embeddings {trained} is not supported; what works: 1 or more")
        most = min(most, trained)
    return most


def _ropes(family: Family, config: PreTrainedConfig) -> list[dict[str, Any]]:
    found = config.rope_parameters
    return [found[kind] if kind else found for kind in family.rope_kinds(config)]
