"""Merged models, as the API answers them."""

from datetime import datetime

from contract.messages.adapter_manifest import AdapterFile
from contract.strict import Message


class MergedModel(Message):
    """An adapter added to its base: a folder that is loaded without the adapter, once its `status` is `ready`."""

    id: str
    adapter_id: str
    base_model: str
    base_revision: str
    status: str
    files: list[AdapterFile]
    bytes: int
    max_shard_bytes: int
    waits_for: str | None = None
    error: str | None = None
    created_at: datetime
    ended_at: datetime | None = None
    expires_at: datetime | None = None
