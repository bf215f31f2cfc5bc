"""Two tasks side by side: where their specs differ, and what came of them. Values in, a table out."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from contract.wording.config_labels import label
from contract.wording.duration_words import duration
from motet.api.resources import Task
from motet.display.columns import Column, Columns

_ID = re.compile(r"[a-z]+_[0-9a-z]{26}")  # two of them are wider than a narrow terminal


def comparison(one: Task, other: Task) -> RenderableType:
    """Results first, then every field of the specs that differs."""
    columns = (Column(""), Column(one.name or "first", folds=True), Column(other.name or "second", folds=True))
    results = [(name, *(tell(task) for task in (one, other))) for name, tell in _RESULTS.items()]
    specs = [dict(_fields(task.spec)) for task in (one, other)]
    names = dict.fromkeys((*specs[0], *specs[1]))
    differing = [
        (name, *(str(spec.get(name, "")) for spec in specs)) for name in names if specs[0].get(name) != specs[1].get(name)
    ]
    ids = [Text(f"{task.id}  {task.name or ''}".rstrip()) for task in (one, other)]  # at 80 columns they do not fit abreast
    head = Group(*ids, Text(), Columns(columns, results))
    if not differing:
        return Group(head, Text(), Text("Their specs are the same."))
    same_row = [row for row in differing if not any(map(_ID.fullmatch, row[1:]))]
    ids_below = [(name, f"{first}\n{second}") for name, first, second in differing if (name, first, second) not in same_row]
    told = [Columns(columns, same_row)] if same_row else []
    told += [Columns((Column(""), Column("")), ids_below)] if ids_below else []
    return Group(head, Text(), Text("What differs in their specs:", style="dim"), *told)


def _fields(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every field with its path; fields that say nothing are left out."""
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _fields(inner, f"{path}{name}.")
        elif inner is not None:
            yield f"{path}{name}", inner


def _loss(value: float | None) -> str:
    return f"{value:.4f}" if value is not None else ""


def _took(task: Task) -> str:
    if task.started_at is None or task.ended_at is None:
        return ""
    return duration((task.ended_at - task.started_at).total_seconds())


def _saved(task: Task) -> str:
    return f"{task.samples.saved_fraction:.0%}" if task.samples.saved_fraction is not None else ""


_NAMED = ("learning_rate", "rank", "batch_size")  # of a winner's configuration
_RESULTS = {
    "status": lambda task: task.status.value,
    "best val loss": lambda task: _loss(task.winner.val_loss if task.winner is not None else None),
    "base val loss": lambda task: _loss(task.base_val_loss),
    "winner": lambda task: (
        label(task.winner.config, ["learning_rate", "rank", "batch_size"]) if task.winner is not None else ""
    ),
    "jobs": lambda task: str(sum(task.jobs.values())),
    "samples trained": lambda task: f"{task.samples.trained:,}",
    "samples saved": _saved,
    "took": _took,
}
