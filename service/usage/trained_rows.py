"""Training rows of a number of steps: the unit of progress and of what an early exit saves. Knows no tokens."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func

from contract.job_config import MAX_BATCH_SIZE
from service.database.checked_json import number_in
from service.tasks.models import Job, Task

batch_size = number_in(Job.config["batch_size"], MAX_BATCH_SIZE)  # null where it cannot be read, as is what follows from it
_steps_per_epoch = (Task.train_rows + batch_size - 1) // batch_size


def rows_in(steps: Any) -> Any:
    """Training rows of `steps` steps, in SQL; the last step of an epoch may be short."""
    return (steps // _steps_per_epoch) * Task.train_rows + func.least((steps % _steps_per_epoch) * batch_size, Task.train_rows)


def batch_size_of(config: Mapping[str, Any]) -> int:
    """The batch size of a stored configuration; 0 where it cannot be read."""
    found = config.get("batch_size")
    return found if type(found) is int and 0 < found <= MAX_BATCH_SIZE else 0


def rows_trained(steps: int, batch: int, train_rows: int) -> int:
    """`rows_in` on Python numbers; 0 of a batch size of 0."""
    if not train_rows or not batch:
        return 0
    epochs, rest = divmod(steps, -(-train_rows // batch))
    return epochs * train_rows + min(rest * batch, train_rows)
