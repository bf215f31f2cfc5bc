"""Writes safetensors files (checkpoints, adapters), and raises file system errors as OSError: the library, written in Rust,
raises its own type."""

import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def write_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    try:
        save_file(dict(tensors), path, metadata=dict(metadata))
    except SafetensorError as error:
        found = _OS_ERROR.search(str(error))
        if found is None:
            raise
        raise OSError(int(found.group(1)), str(error), str(path)) from None
