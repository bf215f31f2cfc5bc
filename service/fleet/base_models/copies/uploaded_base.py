"""Reads a base whose files an admin uploaded to storage: checks that it can be trained on. Loads no weights, knows no hub.

The files' objects count as young from here on, so no sweep removes them before their row refers to them.
"""

import re
import struct
from collections.abc import Mapping, Sequence

from contract.messages.placement_messages import SMALL_FILES, STORAGE_SCHEME, TEMPLATE_PATH, TEMPLATES, BaseFile
from contract.model_revision import combined
from service.files.folder_tokenizer import template_kind
from service.fleet.base_models.base_files import INDEX, NEEDED, SMALL_BYTES, weight_paths
from service.fleet.base_models.model_config import ModelConfig, header_length, parameters_in
from service.fleet.models import BaseModel, BaseModelFile
from service.http.problems import Invalid, invalid_field, shown
from service.storage.object_store import Storage

_HOLDER = "the upload"


def missing(storage: Storage, files: Sequence[BaseFile]) -> list[str]:
    """The sha256 of those that storage does not hold."""
    return [file.sha256 for file in files if not storage.grant_upload(file.sha256, file.bytes).exists]


def read_uploaded(storage: Storage, name: str, files: Sequence[BaseFile]) -> tuple[BaseModel, list[BaseModelFile]]:
    """Unsaved rows of the model and its files. Raises Invalid if they make no usable model, and as Storage does."""
    held = {file.path: file for file in files}
    _check_names(held, files)
    if absent := missing(storage, files):
        paths = [file.path for file in files if file.sha256 in absent]
        message = f"{shown(str(paths[:3]))}: storage does not hold them; send each with PUT /v1/admin/model-files/{{sha256}}"
        raise _wrong("not_uploaded", message)
    index = _content(storage, held[INDEX]) if INDEX in held else None
    weights = weight_paths(_HOLDER, held, index, "files")
    if surplus := sorted(held.keys() - {*_small(held), *weights}):
        known = f"{', '.join(SMALL_FILES)} and {TEMPLATES}/*.jinja"
        message = f"{shown(surplus[0])} is neither named by {INDEX} nor one of {known}; leave it out"
        raise _wrong("surplus_file", message)
    config = ModelConfig.read(_content(storage, held["config.json"]), "files")
    row = BaseModel(
        name=name,
        source=STORAGE_SCHEME + name,
        revision=combined((path, held[path].sha256) for path in weights),
        architecture=config.architecture,
        model_type=config.model_type,
        parameters=sum(_parameters(storage, held[path]) for path in weights),
        max_position=config.max_position,
        enabled=True,
        gated=False,
        template_kind=template_kind(lambda path: _content(storage, held[path]) if path in held else None),
    )
    return row, [BaseModelFile(base_model=name, path=f.path, sha256=f.sha256, bytes=f.bytes) for f in files]


def _check_names(held: Mapping[str, BaseFile], files: Sequence[BaseFile]) -> None:
    if len(held) < len(files):
        raise _wrong("repeated", "names a file twice")
    if absent := [needed for needed in NEEDED if needed not in held]:
        raise _wrong("incomplete", f"{_HOLDER} holds no {' and no '.join(absent)}")
    for path in _small(held):
        if held[path].bytes > SMALL_BYTES:
            raise _wrong("too_large", f"{path} has {held[path].bytes} bytes, and may have at most {SMALL_BYTES}")


def _small(held: Mapping[str, BaseFile]) -> list[str]:
    """The paths of those that are no weights."""
    return [path for path in held if path in (*SMALL_FILES, INDEX) or re.fullmatch(TEMPLATE_PATH, path)]


def _content(storage: Storage, file: BaseFile) -> bytes:
    with storage.open(file.sha256) as content:
        return content.read()


def _parameters(storage: Storage, file: BaseFile) -> int:
    """The number of parameters, from the header of a safetensors file."""
    try:
        with storage.open(file.sha256) as content:
            return parameters_in(content.read(header_length(content.read(8), file.path)))
    except (ValueError, struct.error) as error:
        raise _wrong("damaged", f"{_HOLDER} holds a damaged file: {error}") from None


def _wrong(code: str, message: str) -> Invalid:
    return invalid_field("files", code, message)
