"""Which fields of specs keep their tasks' validation losses from being compared. Pure; reads no task.

`contents`: by the id of a file the sha256 of its bytes, where it is known. Files of the same bytes are the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

FILES = ("dataset.file_id", "dataset.validation_file_id", "evaluation.file_id")


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Every field of a document by its dotted path."""
    if isinstance(value, Mapping):
        within = (flat(inner, f"{path}.{name}" if path else str(name)) for name, inner in value.items())
        return {name: held for fields in within for name, held in fields.items()}
    return {path: value}


def files_in(spec: Mapping[str, Any]) -> list[str]:
    """The ids of the files that a spec names."""
    return [str(value) for path, value in flat(spec).items() if path in FILES and value]


def content_of(path: str, value: Any, contents: Mapping[str, str]) -> Any:
    """What a field's values are compared by: of a file its content."""
    return contents.get(value, value) if path in FILES and value is not None else value


def loss_differences(specs: Sequence[Mapping[str, Any]], contents: Mapping[str, str]) -> list[str]:
    """The fields that keep the specs' validation losses from being compared: those that say which rows validate, how these are
    cut, and what is learned on which base. Empty: the rows are the same."""
    fields = [flat(spec) for spec in specs]
    held = ["dataset.validation_file_id"]
    if not all(one.get(held[0]) for one in fields):
        held += ["dataset.file_id", "dataset.validation_fraction", "dataset.max_validation_rows"]
    paths = [*held, "training.max_seq_len", "base_model", "objective.type", "objective.turns"]
    return [path for path in paths if len({content_of(path, one.get(path), contents) for one in fields}) > 1]
