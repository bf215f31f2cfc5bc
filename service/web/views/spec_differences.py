"""A spec in its own order, and how several differ, field by field. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from contract.compatibility.lenient_documents import read_leniently
from contract.task_spec import TaskSpec
from service.web.views.formats import value_of

_FILES = ("dataset.file_id", "dataset.validation_file_id", "evaluation.file_id")


def in_order(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec as a document in its fields' order, without the nulls of fields that keep their defaults; what this version
    cannot read, as it is stored."""
    try:
        read = read_leniently(TaskSpec, spec)
    except ValueError:
        return dict(spec)
    whole: dict[str, Any] = _without_nulls(read, read.model_dump(mode="json", warnings="none"))
    return whole


def _without_nulls(value: Any, dumped: Any) -> Any:
    """Of models alone: a null inside a JSON Schema is a value. Fields of a newer version stand last, as they are."""
    if isinstance(value, BaseModel):
        known = {name: _without_nulls(getattr(value, name), said) for name, said in dumped.items()}
        return {name: said for name, said in known.items() if said is not None} | (value.model_extra or {})
    if isinstance(value, list | tuple):
        return [_without_nulls(one, said) for one, said in zip(value, dumped, strict=True)]
    return dumped


@dataclass(frozen=True)
class NamedFile:
    name: str
    sha256: str


FilesById = Mapping[str, NamedFile]


def files_in(spec: Mapping[str, Any]) -> list[str]:
    """The ids of the files that a spec names."""
    return [str(value) for path, value in _flat(spec, "") if path in _FILES and value]


def differences(specs: Sequence[Mapping[str, Any]], files: FilesById) -> list[tuple[str, list[str]]]:
    """The fields in which they differ, as dotted paths, with each spec's value; files differ where their bytes do."""
    flat = [dict(_flat(spec, "")) for spec in specs]
    paths = sorted({path for one in flat for path in one})
    known = [path for path in paths if len({_same(path, one.get(path), files) for one in flat}) > 1]
    return [(path, [_shown(path, one.get(path), files) for one in flat]) for path in known]


def loss_differences(specs: Sequence[Mapping[str, Any]], files: FilesById) -> list[str]:
    """The fields that keep the specs' validation losses from being compared: those that say which rows validate, how these are
    cut, and what is learned on which base. Empty: the rows are the same."""
    flat = [dict(_flat(spec, "")) for spec in specs]
    held = ["dataset.validation_file_id"]
    if not all(one.get(held[0]) for one in flat):
        held += ["dataset.file_id", "dataset.validation_fraction", "dataset.max_validation_rows"]
    paths = [*held, "training.max_seq_len", "base_model", "objective.type", "objective.turns"]
    return [path for path in paths if len({_same(path, one.get(path), files) for one in flat}) > 1]


def _same(path: str, value: Any, files: FilesById) -> str:
    """What is equal where the values mean the same."""
    return files[value].sha256 if path in _FILES and value in files else value_of(value)


def _shown(path: str, value: Any, files: FilesById) -> str:
    if path in _FILES and value in files:
        return f"{files[value].name} ({value}, sha256 {files[value].sha256[:8]})"
    return value_of(value)


def _flat(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [found for name, inner in value.items() for found in _flat(inner, f"{path}.{name}" if path else str(name))]
    return [(path, value)]
