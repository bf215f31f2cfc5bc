"""Two tasks side by side: where their specs differ, and what came of them. Values in, a table out."""

import re
from collections.abc import Callable, Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from contract.wording.comparable_losses import content_of, flat, loss_differences
from contract.wording.config_labels import MAIN, Digits, digits_of, label
from contract.wording.configuration_numbers import field_texts
from contract.wording.duration_words import duration
from motet.api.resources import Task
from motet.display.columns import Column, Columns

_ID = re.compile(r"[a-z]+_[0-9a-z]{26}")  # two of them are wider than a narrow terminal


def comparison(one: Task, other: Task, contents: Mapping[str, str]) -> RenderableType:
    """Results first, whether their losses can be compared, then every field of the specs that differs. contents: by the id of a
    file of theirs the sha256 of its bytes, where it is known."""
    columns = (Column(""), Column(one.name or "first", folds=True), Column(other.name or "second", folds=True))
    digits = digits_of(task.winner.config for task in (one, other) if task.winner is not None)
    results = [(name, *(tell(task, digits) for task in (one, other))) for name, tell in _RESULTS.items()]
    specs = [{name: value for name, value in flat(task.spec).items() if value is not None} for task in (one, other)]
    names = dict.fromkeys((*specs[0], *specs[1]))
    compared = {name: field_texts([content_of(name, spec.get(name), contents) for spec in specs]) for name in names}
    apart = [name for name, texts in compared.items() if len(set(texts)) > 1]
    differing = [(name, *field_texts([spec.get(name) for spec in specs])) for name in apart]
    ids = [Text(f"{task.id}  {task.name or ''}".rstrip()) for task in (one, other)]  # at 80 columns they do not fit abreast
    head = Group(*ids, Text(), Columns(columns, results), Text(), Text(_comparable(one, other, contents)))
    if not differing:
        return Group(head, Text(), Text("Their specs are the same."))
    same_row = [row for row in differing if not any(map(_ID.fullmatch, row[1:]))]
    ids_below = [(name, f"{first}\n{second}") for name, first, second in differing if (name, first, second) not in same_row]
    told = [Columns(columns, same_row)] if same_row else []
    told += [Columns((Column(""), Column("")), ids_below)] if ids_below else []
    return Group(head, Text(), Text("What differs in their specs:", style="dim"), *told)


def _comparable(one: Task, other: Task, contents: Mapping[str, str]) -> str:
    apart = loss_differences([one.spec, other.spec], contents)
    if len({one.rows.validation, other.rows.validation} - {None}) > 1:
        apart.append("the number of validation rows")
    if not apart:
        return "Their losses can be compared: they have the same validation rows, base and objective."
    return f"Their losses cannot be compared as they stand: they differ in {', '.join(apart)}."


def _loss(value: float | None) -> str:
    return f"{value:.4f}" if value is not None else ""


def _took(task: Task) -> str:
    if task.started_at is None or task.ended_at is None:
        return ""
    return duration((task.ended_at - task.started_at).total_seconds())


def _saved(task: Task) -> str:
    return f"{task.samples.saved_fraction:.0%}" if task.samples.saved_fraction is not None else ""


_RESULTS: Mapping[str, Callable[[Task, Digits], str]] = {
    "status": lambda task, _: task.status.value,
    "best val loss": lambda task, _: _loss(task.winner.val_loss if task.winner is not None else None),
    "base val loss": lambda task, _: _loss(task.base_val_loss),
    "winner": lambda task, digits: label(task.winner.config, MAIN, digits) if task.winner is not None else "",
    "jobs": lambda task, _: str(sum(task.jobs.values())),
    "samples trained": lambda task, _: f"{task.samples.trained:,}",
    "samples saved": lambda task, _: _saved(task),
    "took": lambda task, _: _took(task),
}
