"""What of a task's row cannot be read, in words for its owner. Its other columns, and all other rows, are read as ever."""

from collections.abc import Sequence
from typing import Any

from contract.compatibility.lenient_documents import unread_fields
from contract.job_config import JobConfig
from service.database.checked_json import CheckedJson, ParsedJson, Unread
from service.http.problems import FieldError
from service.tasks.job_resource import config_words
from service.tasks.models import Task
from service.tasks.selection import Selection

# those that are shown; what placements go on from is read, and told of, where it is needed
CHECKED = {
    column.name: column.type
    for column in Task.__table__.columns
    if isinstance(column.type, CheckedJson) and not isinstance(column.type, ParsedJson)
}


def unread_columns(task: Any, chosen: Selection | None) -> Sequence[str]:
    """The columns that cannot be read. `task` is any row with a Task's columns, `chosen` its selection as it was read."""
    found = [name for name in CHECKED if isinstance(getattr(task, name), Unread)]
    damaged = task.selection is not None and chosen is None and "selection" not in found
    return [*found, "selection"] if damaged else found


def unread_problems(task: Any, chosen: Selection | None, winner: JobConfig | None) -> list[FieldError] | None:
    """The same in words, and what of its winner's configuration cannot be read; None where all can be."""
    found = {name: _words(name) for name in unread_columns(task, chosen)}
    if winner is not None and (unread := unread_fields(winner)):
        found["winner.config"] = config_words("its winner", unread)
    return [FieldError(field=name, code="unreadable", message=said) for name, said in found.items()] or None


def _words(name: str) -> str:
    return (
        f"The stored tasks.{name} of this task cannot be read and is shown as empty. An operator can write it anew in the "
        f"database; or submit the task again."
    )
