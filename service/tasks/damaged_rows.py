"""What of a task's row cannot be read, in words for its owner. Its other columns, and all other rows, are read as ever."""

from collections.abc import Sequence
from typing import Any

from service.database.checked_json import CheckedJson, Unread
from service.http.problems import FieldError
from service.tasks.models import Task
from service.tasks.selection import selection_of

CHECKED = {column.name: column.type for column in Task.__table__.columns if isinstance(column.type, CheckedJson)}


def unread_columns(task: Any) -> Sequence[str]:
    """The columns that cannot be read. `task` is any row with a Task's columns."""
    return [name for name in CHECKED if isinstance(value := getattr(task, name), Unread) or _of_no_selection(task, name, value)]


def _of_no_selection(task: Any, name: str, value: Any) -> bool:
    return name == "selection" and value is not None and selection_of(task) is None


def unread_problems(task: Any) -> list[FieldError] | None:
    """The same in words; None where all can be read."""
    return [FieldError(field=name, code="unreadable", message=_words(name)) for name in unread_columns(task)] or None


def _words(name: str) -> str:
    return (
        f"The stored tasks.{name} of this task cannot be read and is shown as empty. An operator can write it anew in the "
        f"database; or submit the task again."
    )
