"""A spec in its own order, and how several differ, field by field. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from contract.compatibility.lenient_documents import read_leniently
from contract.task_spec import TaskSpec
from contract.wording.comparable_losses import FILES, content_of, flat
from contract.wording.configuration_numbers import field_text, field_texts
from service.web.views.formats import with_title


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


def differences(specs: Sequence[Mapping[str, Any]], files: FilesById) -> list[tuple[str, list[str]]]:
    """The fields in which they differ, as dotted paths, with each spec's value; files differ where their bytes do."""
    fields, contents = [flat(spec) for spec in specs], contents_of(files)
    paths = sorted({path for one in fields for path in one})
    compared = {path: field_texts([content_of(path, one.get(path), contents) for one in fields]) for path in paths}
    known = [path for path, texts in compared.items() if len(set(texts)) > 1]
    return [(path, _shown(path, [one.get(path) for one in fields], files)) for path in known]


def contents_of(files: FilesById) -> dict[str, str]:
    return {id: file.sha256 for id, file in files.items()}


def _shown(path: str, values: Sequence[Any], files: FilesById) -> list[str]:
    if path in FILES:
        return [_named(value, files.get(value)) for value in values]
    return [with_title(text, field_text(value)) for text, value in zip(field_texts(values), values, strict=True)]


def _named(id: str | None, file: NamedFile | None) -> str:
    return field_text(id) if file is None else f"{file.name} ({id}, sha256 {file.sha256[:8]})"
