"""Reads a task's spec as people write it: YAML that contains paths. Reports every mistake, with its line, before any upload.

    dataset: {file: train.jsonl, validation_file: validation.jsonl}

Paths are relative to the spec's own folder. Knows YAML and TaskSpec. Knows no service.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from contract.task_spec import TaskSpec
from contract.wording.field_mistakes import message, without_echoes
from motet.api.errors import MotetError

_NOT_YET = "file_not_uploaded_yet"
_PATHS = {
    "file": "file_id",
    "validation_file": "validation_file_id",
}  # spec field -> TaskSpec field
_FLOAT = re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$")

Where = Sequence[str | int]


class SpecError(MotetError):
    """The spec cannot be used; the text names each line and field."""


class _Loader(yaml.SafeLoader):
    """YAML loader that reads 1e-4 as a number and rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                raise yaml.constructor.ConstructorError(None, None, f"{key} stands here twice", node.value[place][0].start_mark)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag != "tag:yaml.org,2002:float"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


@dataclass(frozen=True)
class SpecFile:
    """A valid spec whose files are still to be uploaded. `files`: each path by its field."""

    path: Path
    content: Mapping[str, Any]
    files: Mapping[str, Path]

    def with_files(self, ids: Mapping[str, str]) -> TaskSpec:
        """The spec with the ids of the uploaded files, by field."""
        dataset = self.content.get("dataset")
        whole = {"dataset": {**dataset, **ids}} if isinstance(dataset, dict) else {}
        return TaskSpec.model_validate({**self.content, **whole})


def read(path: Path) -> SpecFile:
    """Parse and validate the spec. Raises SpecError with every mistake."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(f"there is no file {path}; examples/spec.yaml is one to begin with") from None
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is no text in UTF-8 (byte {error.start}); a spec is a YAML file") from None
    if path.suffix == ".jsonl":
        raise SpecError(f"{path} holds rows; a spec is a YAML file that names them: `dataset: {{file: {path.name}}}`")
    root, content = _parse(path, text)
    content, files, found = _take_paths(path, content)
    draft = SpecFile(path, content, files)
    try:
        draft.with_files(dict.fromkeys(files, _NOT_YET))
    except ValidationError as error:
        found += [_placed(one) for one in without_echoes(error.errors())]
    if found:
        raise _mistakes(path, found, root)
    return draft


def json_schema() -> dict[str, Any]:
    """The spec format as JSON Schema (draft 2020-12): TaskSpec plus paths as an alternative to ids of uploads."""
    made = TaskSpec.model_json_schema()
    dataset = made["$defs"]["Dataset"]
    for path, field in _PATHS.items():
        told = f"Path of a JSONL file, relative to the spec's folder; uploaded, it becomes {field}"
        dataset["properties"][path] = {"type": "string", "minLength": 1, "description": told}
    dataset["required"] = [name for name in dataset["required"] if name not in _PATHS.values()]
    dataset["oneOf"] = [{"required": ["file"]}, {"required": ["file_id"]}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def _parse(path: Path, text: str) -> tuple[yaml.Node, dict[str, Any]]:
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        content = loader.construct_document(root) if root is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise SpecError(f"{path}: {where}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{path} is not YAML: {error}") from None
    except ValueError as error:  # text that looks like a date or a number and is neither
        raise SpecError(f"{path} holds a value that cannot be read: {error}") from None
    except RecursionError:
        raise SpecError(f"{path} is nested too deeply") from None
    if root is None or not isinstance(content, dict):
        raise SpecError(f"{path} holds no task: at its top there must be fields such as base_model, dataset, search_space")
    return root, content


def _take_paths(path: Path, content: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Path], list[tuple[Where, str]]]:
    """The content without its paths, the paths by their field, and the mistakes in them."""
    dataset = content.get("dataset")
    if not isinstance(dataset, dict):
        return content, {}, []
    files: dict[str, Path] = {}
    mistakes: list[tuple[Where, str]] = []
    for given, field in _PATHS.items():
        if given not in dataset:
            continue
        where = ("dataset", given)
        local = path.parent / Path(str(dataset[given])).expanduser()
        if dataset.get(field) is not None:
            mistakes.append((where, f"stands beside {field}; keep the path or the id of an upload"))
        elif not local.is_file():
            mistakes.append((where, f"there is no file {local}; paths are relative to the spec's folder"))
        files[field] = local
    rest = {name: value for name, value in dataset.items() if name not in _PATHS}
    return {**content, "dataset": rest}, files, mistakes


def _placed(found: Mapping[str, Any]) -> tuple[Where, str]:
    """One of pydantic's errors: where it stands, and its message."""
    if found["type"] == "missing" and found["loc"] == ("dataset", "file_id"):
        return ("dataset",), "needs `file`, the path of a JSONL file, or `file_id`, an upload"
    at = found["loc"][:-1] if found["type"] == "extra_forbidden" else found["loc"]
    return found["loc"], message(found, _fields_at(at))


def _fields_at(where: Where) -> list[str]:
    model: type[BaseModel] = TaskSpec
    for part in where:
        field = model.model_fields[part].annotation if isinstance(part, str) and part in model.model_fields else None
        inner = next((hint for hint in (field, *get_args(field)) if isinstance(hint, type) and hint is not type(None)), None)
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return [*model.model_fields, *(_PATHS if where and where[-1] == "dataset" else ())]


def _mistakes(path: Path, found: Sequence[tuple[Where, str]], root: yaml.Node) -> SpecError:
    placed = sorted((_line(root, where), _dotted(where), message) for where, message in found)
    lines = [f"line {line}, {field}: {message}" if field else f"line {line}: {message}" for line, field, message in placed]
    if len(lines) == 1:
        return SpecError(f"{path}: {lines[0]}")
    return SpecError("\n  ".join([f"{path} has {len(lines)} mistakes:", *lines]))


def _dotted(where: Where) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).removeprefix(".")


def _line(node: yaml.Node, where: Where) -> int:
    """The line, counted from 1, of the node at `where`, or of its nearest ancestor."""
    line = node.start_mark.line
    for part in where:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == part]
            if not found:
                break
            line, node = found[0][0].start_mark.line, found[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line
        else:
            break
    return int(line) + 1
