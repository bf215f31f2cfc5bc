"""Pushes to the hub, as the API answers them."""

from datetime import datetime

from contract.messages.adapter_manifest import AdapterFile
from contract.strict import Message


class HubPushError(Message):
    """Why the last attempt failed."""

    code: str
    detail: str


class HubPush(Message):
    """An adapter or a merged model on its way to a repository of the hub; there as of `commit` once `status` is `succeeded`."""

    id: str
    adapter_id: str | None = None
    merged_model_id: str | None = None
    repository: str
    revision: str
    private: bool
    url: str
    message: str
    status: str
    files: list[AdapterFile]
    bytes: int
    sent_bytes: int
    commit: str | None = None
    attempts: int
    next_attempt_at: datetime | None = None
    error: HubPushError | None = None
    created_at: datetime
    ended_at: datetime | None = None
