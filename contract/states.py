"""State machines of tasks and jobs: their states, the legal transitions, and the reasons for an early exit.

Pure tables. Knows no storage and no callers.
"""

from enum import StrEnum


class TaskStatus(StrEnum):
    VALIDATING = "validating"
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobStatus(StrEnum):
    PENDING = "pending"
    WARMUP = "warmup"
    PARKED = "parked"
    TRAINING = "training"
    COMPLETED = "completed"
    EXITED = "exited"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ExitReason(StrEnum):
    """Why early exit ended a job (ALTO, section 5). An exit is not a failure."""

    DIVERGING = "diverging"
    OVERFITTING = "overfitting"
    UNDERPERFORMING = "underperforming"


class RequeueReason(StrEnum):
    """Why a running task was taken off its node."""

    PAUSED = "paused"
    PREEMPTED = "preempted"
    NODE_DRAINED = "node_drained"
    NODE_LOST = "node_lost"
    EXECUTOR_LOST = "executor_lost"


_T = TaskStatus
_J = JobStatus

TASK_TRANSITIONS: dict[TaskStatus, frozenset[TaskStatus]] = {
    _T.VALIDATING: frozenset({_T.QUEUED, _T.FAILED, _T.CANCELLED}),
    _T.QUEUED: frozenset({_T.RUNNING, _T.PAUSED, _T.FAILED, _T.CANCELLED}),
    _T.RUNNING: frozenset({_T.QUEUED, _T.PAUSED, _T.SUCCEEDED, _T.FAILED, _T.CANCELLED}),
    _T.PAUSED: frozenset({_T.QUEUED, _T.CANCELLED}),
    _T.SUCCEEDED: frozenset(),
    _T.FAILED: frozenset(),
    _T.CANCELLED: frozenset(),
}

# A job may complete or exit in warmup or training; a parked job may exit at the warmup boundary.
JOB_TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    _J.PENDING: frozenset({_J.WARMUP, _J.FAILED, _J.CANCELLED}),
    _J.WARMUP: frozenset({_J.PARKED, _J.TRAINING, _J.COMPLETED, _J.EXITED, _J.FAILED, _J.CANCELLED}),
    _J.PARKED: frozenset({_J.TRAINING, _J.EXITED, _J.FAILED, _J.CANCELLED}),
    _J.TRAINING: frozenset({_J.COMPLETED, _J.EXITED, _J.FAILED, _J.CANCELLED}),
    _J.COMPLETED: frozenset(),
    _J.EXITED: frozenset(),
    _J.FAILED: frozenset(),
    _J.CANCELLED: frozenset(),
}

# Taking a task off its node rewinds each unfinished job, and so its status, to its last checkpoint.
JOB_REWINDS: dict[JobStatus, frozenset[JobStatus]] = {
    _J.PENDING: frozenset({_J.PENDING}),
    _J.WARMUP: frozenset({_J.PENDING, _J.WARMUP}),
    _J.PARKED: frozenset({_J.PENDING, _J.WARMUP, _J.PARKED}),
    _J.TRAINING: frozenset({_J.PENDING, _J.WARMUP, _J.PARKED, _J.TRAINING}),
    _J.COMPLETED: frozenset(),
    _J.EXITED: frozenset(),
    _J.FAILED: frozenset(),
    _J.CANCELLED: frozenset(),
}

TASK_TERMINAL: frozenset[TaskStatus] = frozenset(s for s, after in TASK_TRANSITIONS.items() if not after)
JOB_TERMINAL: frozenset[JobStatus] = frozenset(s for s, after in JOB_TRANSITIONS.items() if not after)


class IllegalTransition(ValueError):
    """A change of status that the transition table does not contain."""

    def __init__(self, before: StrEnum, after: StrEnum) -> None:
        super().__init__(f"{type(before).__name__} may not change from {before.value!r} to {after.value!r}")
        self.before, self.after = before, after


def check_task(before: TaskStatus, after: TaskStatus) -> TaskStatus:
    """Return `after` if the table allows the change; raise IllegalTransition otherwise."""
    if after not in TASK_TRANSITIONS[before]:
        raise IllegalTransition(before, after)
    return after


def check_job(before: JobStatus, after: JobStatus) -> JobStatus:
    """Return `after` if the table allows the change; raise IllegalTransition otherwise."""
    if after not in JOB_TRANSITIONS[before]:
        raise IllegalTransition(before, after)
    return after
