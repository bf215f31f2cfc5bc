"""Batches, as the API shows them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from contract.states import TaskStatus
from contract.strict import Message
from motet.api.resources.files import RowProblem
from motet.api.resources.task_estimates import Estimate


class BatchTask(Message):
    """A task of a batch; times are None while nothing is known of them."""

    id: str
    name: str | None = None
    status: TaskStatus
    node: str | None = None
    expected_start: datetime | None = None
    expected_end: datetime | None = None


class Batch(Message):
    """Tasks that were posted together, planned for one objective."""

    id: str
    name: str | None = None
    objective: str
    status: str
    deadline: datetime | None = None
    late: bool = False
    created_at: datetime
    ended_at: datetime | None = None
    expected_end: datetime | None = None
    tasks: list[BatchTask]
    plan: dict[str, Any] | None = None
    problems: Sequence[RowProblem] | None = None  # of the answer that makes it: what it is made with all the same


class BatchEstimate(Message):
    """What a batch would take if it were posted now; None where a task fits no node."""

    gpu_seconds: float
    makespan_seconds: float | None = None
    expected_end: datetime | None = None
    late: bool = False
    tasks: Sequence[Estimate] = ()
