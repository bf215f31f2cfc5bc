"""PEFT folders of a toy base, as bytes, and their upload. For tests alone."""

import json
import struct
from typing import Any

import numpy as np

from tests.service.api import Caller

HIDDEN, INNER, LAYERS, HEADS, PAIRS, SIZE = 12, 20, 2, 3, 1, 4
BASE = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": PAIRS,
}
SIZES = {"q_proj": (HIDDEN, HEADS * SIZE), "v_proj": (HIDDEN, PAIRS * SIZE), "down_proj": (INNER, HIDDEN)}
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "target_modules": sorted(SIZES)}
KINDS = {"F32": "<f4", "F16": "<f2"}
Tensors = dict[str, np.ndarray]


def tensors(kind: str = "<f4", seed: int = 0) -> Tensors:
    """Random matrices of every module of SIZES, in every layer, as PEFT names them."""
    rank, random, made = 2, np.random.default_rng(seed), {}
    for layer in range(LAYERS):
        for module, (inputs, outputs) in SIZES.items():
            part = "mlp" if module == "down_proj" else "self_attn"
            at = f"base_model.model.model.layers.{layer}.{part}.{module}"
            made[f"{at}.lora_A.weight"] = random.standard_normal((rank, inputs)).astype(kind)
            made[f"{at}.lora_B.weight"] = random.standard_normal((outputs, rank)).astype(kind)
    return made


def safetensors(held: Tensors, **changes: Any) -> bytes:
    """A file of these tensors. changes: fields of the first one's entry in the header."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in held.items():
        dtype = next(word for word, kind in KINDS.items() if tensor.dtype == np.dtype(kind))
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        header[name] |= changes if at == 0 else {}
        at += tensor.nbytes
    said = json.dumps(header).encode()
    return struct.pack("<Q", len(said)) + said + b"".join(tensor.tobytes() for tensor in held.values())


def upload(caller: Caller, weights: bytes, base: str = "toy", config: Any = None, **parts: str) -> Any:
    """The response to an upload; `config` is CONFIG if left out."""
    said = {"config": json.dumps(CONFIG if config is None else config), "base_model": base} | parts
    key = said.pop("key", None)
    headers = {"Idempotency-Key": key} if key is not None else {}
    return caller.post("/v1/adapters", files={"file": ("adapter_model.safetensors", weights)}, data=said, headers=headers)
