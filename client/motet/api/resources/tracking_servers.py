"""Tracking servers, and what of a task they were sent, as the API answers them."""

from datetime import datetime

from contract.strict import Message


class TrackingServer(Message):
    """Where tasks are mirrored. `type`: mlflow or wandb; its credentials are never shown."""

    id: str
    type: str = "mlflow"
    name: str
    url: str
    has_credentials: bool
    created_at: datetime


class TaskMirror(Message):
    """A task on a tracking server. `experiment`: of W&B, the project; `next_at`: when a visit that failed is repeated."""

    type: str
    server: str
    experiment: str
    entity: str | None = None
    state: str
    error: str | None = None
    next_at: datetime | None = None
    experiment_id: str | None = None
    run_id: str | None = None
    points: int
