"""Training rows of a number of steps: the unit of progress and of what an early exit saves. Knows no tokens."""

from typing import Any

from sqlalchemy import BigInteger, func
from sqlalchemy import cast as sql_cast

from service.tasks.models import Job, Task

batch_size = sql_cast(Job.config["batch_size"].astext, BigInteger)
_steps_per_epoch = (Task.train_rows + batch_size - 1) // batch_size


def rows_in(steps: Any) -> Any:
    """Training rows of `steps` steps, in SQL; the last step of an epoch may be short."""
    return (steps // _steps_per_epoch) * Task.train_rows + func.least((steps % _steps_per_epoch) * batch_size, Task.train_rows)


def rows_trained(steps: int, batch: int, train_rows: int) -> int:
    """`rows_in` on Python numbers."""
    if not train_rows:
        return 0
    epochs, rest = divmod(steps, -(-train_rows // batch))
    return epochs * train_rows + min(rest * batch, train_rows)
