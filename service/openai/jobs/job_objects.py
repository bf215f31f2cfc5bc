"""Translates tasks and adapters into OpenAI's jobs and checkpoints. Times are Unix seconds."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from contract.compatibility.lenient_documents import read_leniently, value_of
from contract.search_space import SearchSpace
from contract.states import TASK_TERMINAL, TaskStatus
from contract.task_spec import DPO_BETA
from service.adapters.models import Adapter
from service.http.openai_ids import OpenAiIds
from service.openai.jobs.job_requests import BASE_LEARNING_RATE
from service.openai.list_envelope import unix
from service.openai.openai_names import tuned
from service.tasks.models import Task
from service.tasks.resource import TaskResource
from service.tasks.stored_specs import part

_STATUSES = {TaskStatus.VALIDATING: "validating_files"}  # the others have the same names; OpenAI has no `paused`
RESULTS = ("metrics", "jobs", "adapter")


class JobObject(BaseModel):
    id: str
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: int
    error: dict[str, str | None] | None
    fine_tuned_model: str | None
    finished_at: int | None
    hyperparameters: dict[str, Any]
    model: str
    organization_id: str
    result_files: list[str]
    seed: int
    status: str
    trained_tokens: int | None
    training_file: str
    validation_file: str | None
    estimated_finish: int | None
    integrations: list[Any]
    metadata: dict[str, str]
    method: dict[str, Any]


class CheckpointObject(BaseModel):
    id: str
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    metrics: dict[str, float]
    step_number: int


def accuracy_is_of_tokens(task: Task) -> bool:
    """Whether the accuracies of its curves are OpenAI's: under dpo they are of pairs."""
    return bool(part(task, "objective").get("type") != "dpo")


def checkpoint_object(adapter: Adapter, task: Task, ids: OpenAiIds) -> CheckpointObject:
    made = adapter.trained
    return CheckpointObject(
        id=ids.of(adapter.id),
        created_at=unix(adapter.created_at),
        fine_tuned_model_checkpoint=tuned(task.base_model, task.name, adapter.id),
        fine_tuning_job_id=ids.of(task.id),
        metrics={"step": float(made.step), "valid_loss": made.val_loss, "full_valid_loss": made.val_loss},
        step_number=made.step,
    )


def job_object(
    task: Task,
    shown: TaskResource,
    tokens: int,
    ids: OpenAiIds,
    running_until: datetime | None = None,
    start: str | None = None,
) -> JobObject:
    """The task as OpenAI's job. `shown`: its native resource; `tokens`: tokens that it is billed for; `running_until`: when a
    running one is expected to end; `start`: the tuned model that it goes on from."""
    ended = task.status in TASK_TERMINAL
    space = _space(task)
    found = _found(task, space, shown)
    return JobObject(
        id=ids.of(task.id),
        created_at=unix(task.created_at),
        error={"code": "task_failed", "message": task.error, "param": None} if task.error else None,
        fine_tuned_model=tuned(task.base_model, task.name, shown.winner.adapter_id) if shown.winner else None,
        finished_at=unix(task.ended_at) if task.ended_at else None,
        hyperparameters=found,
        model=start or task.base_model,
        organization_id=task.tenant_id,
        result_files=[ids.of(id) for id in result_ids(task)] if ended else [],
        seed=(_tried(space, "seed") or [0])[0],
        status=_STATUSES.get(TaskStatus(task.status), str(task.status)),
        trained_tokens=tokens if ended else None,
        training_file=ids.of(task.train_file_id),
        validation_file=ids.of(task.validation_file_id) if task.validation_file_id is not None else None,
        estimated_finish=unix(end) if (end := running_until or _planned_end(shown)) is not None else None,
        integrations=[_integration(one) for one in shown.spec.get("integrations", [])],
        metadata=task.labels,
        method=_method(task, space, shown, found),
    )


def _integration(one: dict[str, Any]) -> dict[str, Any]:
    """As OpenAI answers it: a `server`, which its API lacks, only where the request named one."""
    return {name: value for name, value in one.items() if name != "server" or value is not None}


def _planned_end(shown: TaskResource) -> datetime | None:
    """When the plan in force expects a waiting task to end; None for one that is not planned."""
    expected = (shown.waiting or {}).get("expected_end")
    return datetime.fromisoformat(expected) if isinstance(expected, str) else expected


def result_ids(task: Task) -> list[str]:
    """The ids of the task's result files; only a task with a winner has an adapter."""
    return [f"result-{kind}-{task.id}" for kind in RESULTS if kind != "adapter" or task.winner_job_id is not None]


def _space(task: Task) -> SearchSpace | None:
    """The task's search space; None if this version cannot read it."""
    try:
        return read_leniently(SearchSpace, part(task, "search_space"))
    except ValidationError:
        return None


def _found(task: Task, space: SearchSpace | None, shown: TaskResource) -> dict[str, Any]:
    """The hyperparameters. A searched value is `auto` until there is a winner, then the winner's, or null where
    that cannot be read."""
    rate, batch = _only(_tried(space, "learning_rate")), _only(_tried(space, "batch_size"))
    if shown.winner is not None:
        rate, batch = (value_of(shown.winner.config, name) for name in ("learning_rate", "batch_size"))
    multiplier = rate if rate in (None, "auto") else round(rate / BASE_LEARNING_RATE, 9)
    return {
        "n_epochs": part(task, "training").get("epochs", "auto"),
        "batch_size": batch,
        "learning_rate_multiplier": multiplier,
    }


def _method(task: Task, space: SearchSpace | None, shown: TaskResource, found: dict[str, Any]) -> dict[str, Any]:
    if part(task, "objective").get("type") != "dpo":
        return {"type": "supervised", "supervised": {"hyperparameters": found}}
    beta = shown.winner.config.beta if shown.winner is not None else _only(_tried(space, "beta") or [DPO_BETA])
    return {"type": "dpo", "dpo": {"hyperparameters": found | {"beta": beta}}}


def _tried(space: SearchSpace | None, name: str) -> list[Any]:
    """The distinct values that the configurations set explicitly."""
    if space is None:
        return []
    values = getattr(space, name) if space.jobs is None else [getattr(job, name) for job in space.jobs]
    return [value for value in dict.fromkeys(values or ()) if value is not None]


def _only(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else "auto"
