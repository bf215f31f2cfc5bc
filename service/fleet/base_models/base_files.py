"""Which files make a base: weights as safetensors, beside the small ones. Knows no hub, no storage, no table."""

import json
import re
from collections.abc import Container

from contract.messages.placement_messages import BASE_FILE_NAME
from service.http.problems import invalid_field, shown

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
NEEDED = ("config.json", "tokenizer.json")
SAFE = ".safetensors"
SMALL_BYTES = 128 * 2**20


def weight_paths(holder: str, held: Container[str], index: bytes | None, field: str = "source") -> list[str]:
    """The safetensors files of the model as transformers reads it: those of the index, else model.safetensors. Raises Invalid,
    which names `field`."""
    if index is None:
        if WHOLE not in held:
            raise invalid_field(field, "no_weights", f"{holder} holds neither {WHOLE} nor {INDEX}; is it an adapter?")
        return [WHOLE]
    try:
        paths = sorted(set(json.loads(index)["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise invalid_field(field, "damaged", f"{holder} holds a damaged {INDEX}") from None
    unusable = [path for path in paths if not (re.fullmatch(BASE_FILE_NAME, str(path)) and path.endswith(SAFE))]
    if unusable:
        raise invalid_field(
            field,
            "incomplete",
            f"{holder}: its {INDEX} names {shown(str(unusable[0]))!r}; only *.safetensors files beside it, of letters, "
            "digits, dots, dashes and underscores, are loaded",
        )
    missing = [path for path in paths if path not in held]
    if missing or not paths:
        raise invalid_field(
            field, "incomplete", f"{holder} lacks {len(missing)} of the files in its {INDEX}: {shown(str(missing[:3]))}"
        )
    return paths
