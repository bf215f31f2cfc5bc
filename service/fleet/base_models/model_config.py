"""What config.json and the header of a safetensors file say of a base model. Knows no folder and no hub."""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from contract.model_types import MODEL_TYPES
from service.http.json_objects import json_object
from service.http.problems import invalid_field, shown

_HEADER_LIMIT = 100 * 2**20
_LONGROPE, _TRAINED_AT = {"longrope", "su"}, "original_max_position_embeddings"  # "su": its name in early folders
_MOST, _MOST_POSITIONS = 2**53, 2**31 - 1


@dataclass(frozen=True)
class ModelConfig:
    architecture: str
    model_type: str
    max_position: int

    @classmethod
    def read(cls, content: bytes, field: str) -> Self:
        """Parse a config.json. Raises Invalid, which names `field`, if the model cannot be trained on."""
        config = json_object(content, "config.json", field)
        if (kind := _of(config, "model_type", str, str, field)) not in MODEL_TYPES:
            works = ", ".join(MODEL_TYPES)
            message = f"its config.json has model_type {shown(kind)!r}; what works: {works}"
            raise invalid_field(field, "unsupported_architecture", message)
        if config.get("quantization_config") is not None:
            message = "its weights are quantised; name the original, and a task's precision (nf4) quantises it"
            raise invalid_field(field, "unsupported_architecture", message)
        return cls(
            architecture=_of(config, "architectures", list, lambda found: storable(str(found[0]), 64), field),
            model_type=kind,
            max_position=_of(config, "max_position_embeddings", int, lambda found: _longest_row(config, found, field), field),
        )


def _longest_row(config: Mapping[str, Any], positions: int, field: str) -> int:
    """Tokens of the longest row: under longrope as many as it was trained at, since longer ones have other angles."""
    ropes = [config.get(name) for name in ("rope_parameters", "rope_scaling")]
    kinds = {rope.get(kind) for rope in ropes if isinstance(rope, dict) for kind in ("rope_type", "type")}
    if not kinds.isdisjoint(_LONGROPE):
        said = [rope.get(_TRAINED_AT) for rope in ropes if isinstance(rope, dict)]
        trained = next((one for one in [*said, config.get(_TRAINED_AT)] if one is not None), None)
        positions = min(positions, _of({_TRAINED_AT: trained}, _TRAINED_AT, int, int, field))
    return min(positions, _MOST_POSITIONS)


def storable(text: str, most: int) -> str:
    """Its first characters as Postgres takes them: no NUL, no lone surrogates."""
    return text.replace("\0", "").encode(errors="replace").decode()[:most]


def header_length(first: bytes, name: str) -> int:
    """Bytes of the header of a safetensors file that begins with `first`; 8 bytes precede it. Raises ValueError."""
    if len(first) < 8 or (length := struct.unpack("<Q", first[:8])[0]) > _HEADER_LIMIT:
        raise ValueError(f"{name} is not a safetensors file")
    return int(length)


def parameters_in(header: bytes) -> int:
    """The number of parameters, from a safetensors header: JSON with the tensors' shapes. Raises ValueError."""
    try:
        tensors = json.loads(header)
        found = sum(math.prod(tensor["shape"]) for name, tensor in tensors.items() if name != "__metadata__")
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("the header of a safetensors file lists no tensors") from None
    if not (isinstance(found, int) and 0 <= found < _MOST):
        raise ValueError(f"the header of a safetensors file lists {shown(str(found))} parameters")
    return found


def _of(config: Mapping[str, Any], key: str, kind: type, read: Any, field: str) -> Any:
    value = config.get(key)
    if not isinstance(value, kind) or not value:
        raise invalid_field(field, "config_incomplete", f"its config.json has no usable {key!r}")
    return read(value)
