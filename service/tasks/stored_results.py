"""Stored results of a task that its placements go on from: scores by row, checkpoints."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, FiniteFloat, RootModel, ValidationError

from contract.compatibility.lenient_documents import why_unreadable
from contract.messages.placement_messages import CheckpointRef
from contract.row_scores import MAX_SCORED_ROWS
from service.tasks.models import Job

M = TypeVar("M", bound=BaseModel)
_PromptScores = RootModel[dict[str, Annotated[list[FiniteFloat], Field(max_length=MAX_SCORED_ROWS)]]]


class ResultUnreadable(ValueError):
    """A stored result cannot be read, so that no node can go on from it."""


def read_result(kind: type[M], stored: Any, name: str) -> M:
    """The stored result. `name` says in words which it is. Raises ResultUnreadable."""
    try:
        return kind.model_validate(stored)
    except ValidationError as error:
        raise ResultUnreadable(f"the stored {name} cannot be read ({why_unreadable(error)})") from None


def read_prompt_scores(stored: Any, table: str) -> dict[str, list[float]]:
    """By metric, of each prompt: the column of that name in `table`. Raises ResultUnreadable."""
    return read_result(_PromptScores, stored, f"scores of texts ({table}.prompt_scores)").root


def checkpoint_of(job: Job) -> CheckpointRef | None:
    """None before the first. Raises ResultUnreadable."""
    if job.checkpoint is None:
        return None
    return read_result(CheckpointRef, job.checkpoint, f"checkpoint of job {job.index} (jobs.checkpoint)")


def readable_checkpoint(job: Job) -> CheckpointRef | None:
    """None also where it cannot be read."""
    try:
        return checkpoint_of(job)
    except ResultUnreadable:
        return None
