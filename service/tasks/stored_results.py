"""Stored results of a task that its placements go on from: scores by row, checkpoints."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from contract.compatibility.lenient_documents import why_unreadable

M = TypeVar("M", bound=BaseModel)


class ResultUnreadable(ValueError):
    """A stored result cannot be read, so that no node can go on from it."""


def read_result(kind: type[M], stored: Any, name: str) -> M:
    """The stored result. `name` says in words which it is. Raises ResultUnreadable."""
    try:
        return kind.model_validate(stored)
    except ValidationError as error:
        raise ResultUnreadable(f"the stored {name} cannot be read ({why_unreadable(error)})") from None
