"""Stored specs: what the tenant sent, beside the defaults in force at that time; read leniently, never changed.

What a spec leaves out keeps its default from the task's creation, so that a version with other defaults changes no existing
task. Knows no plan and no HTTP.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from contract.compatibility.lenient_documents import combine, omitted, read_leniently, sent, unknown_fields, why_unreadable
from contract.compatibility.version import VERSION
from contract.job_config import JobConfig
from contract.task_spec import TaskSpec
from service.database.checked_json import Unread

log = logging.getLogger(__name__)

_LOGGED = 10_000  # (task, field) pairs that are logged only once


class SpecUnreadable(ValueError):
    """This version cannot read the stored spec or one of the task's jobs; another version wrote it."""


def stored(spec: TaskSpec) -> dict[str, dict[str, Any]]:
    """The columns of a new task that hold its spec, with asterisks for secrets."""
    if spec.evaluation is not None and spec.evaluation.endpoints:
        spec = spec.model_copy(update={"evaluation": spec.evaluation.without_secrets()})
    said = sent(spec)
    return {"spec": said, "spec_defaults": omitted(spec.model_dump(mode="json"), said)}


def effective(task: Any) -> dict[str, Any]:
    """The spec as a document with its defaults, not validated; empty where it is no object. `task` is any row with a Task's
    columns."""
    if isinstance(task.spec, Unread):
        return {}
    whole: dict[str, Any] = combine(task.spec, task.spec_defaults) if task.spec_defaults else task.spec
    return whole


def part(task: Any, name: str) -> Mapping[str, Any]:
    """An object of the effective spec; empty if a newer version stores another type there."""
    found = effective(task).get(name)
    return found if isinstance(found, Mapping) else {}


def damaged_columns(task: Any) -> list[str]:
    """Those of the spec's columns that no version can read."""
    return [name for name in ("spec", "spec_defaults") if isinstance(getattr(task, name), Unread)]


def spec_of(task: Any) -> TaskSpec:
    """The parsed spec; fields of a newer version are kept and logged. Raises SpecUnreadable."""
    if damaged := damaged_columns(task):
        raise SpecUnreadable(f"tasks.{damaged[0]} is no JSON object")
    try:
        spec = read_leniently(TaskSpec, effective(task))
    except ValueError as error:
        raise SpecUnreadable(why_unreadable(error)) from None
    for field in unknown_fields(spec):
        _log_once(task.id, field)
    return spec


def cut_metric_of(task: Any) -> str | None:
    """The text metric that jobs are ranked by where their warmup ends; None also where this version cannot read the spec."""
    try:
        return spec_of(task).cut_metric
    except SpecUnreadable:
        return None


def newer_fields(task: Any, spec: TaskSpec) -> list[str]:
    """Fields that the tenant sent and this version does not know. Unsent fields are at defaults, and may be ignored."""
    return [field for field in unknown_fields(spec) if _holds(task.spec, field.split("."))]


def understood(task: Any) -> bool:
    """Whether this version knows every field of the spec."""
    try:
        return not newer_fields(task, spec_of(task))
    except SpecUnreadable:
        return False


def _holds(document: Any, path: Sequence[str]) -> bool:
    for name in path:
        if isinstance(document, list):
            document = document[int(name)]
        elif isinstance(document, dict) and name in document:
            document = document[name]
        else:
            return False
    return True


def config_of(document: Mapping[str, Any]) -> JobConfig:
    """A job's stored configuration. Raises SpecUnreadable."""
    try:
        return read_leniently(JobConfig, document)
    except ValueError as error:
        raise SpecUnreadable(f"jobs: {why_unreadable(error)}") from None


def needs_version(task: Any, why: str) -> str:
    """Message: why this version leaves the task alone, and which version does not."""
    if task.made_by == VERSION:
        return f"Motet {VERSION} accepted this task but cannot read its spec any more ({why}); cancel it and submit it again."
    other = f"version {task.made_by}" if task.made_by else "the version"
    return f"Motet {VERSION} cannot read this task's spec ({why}); {other}, which accepted it, can, once it plans again."


@lru_cache(maxsize=_LOGGED)
def _log_once(task_id: str, field: str) -> None:
    log.warning("task %s has a spec of another version: this one (%s) does not know %s", task_id, VERSION, field)
