"""Committed adapters, as the API answers them."""

from datetime import datetime

from contract.messages.adapter_manifest import AdapterFile, Lineage
from contract.strict import Message


class Adapter(Message):
    """A committed adapter: a PEFT folder of immutable files."""

    id: str
    task_id: str
    job_id: str
    step: int
    val_loss: float
    bytes: int
    files: list[AdapterFile]
    lineage: Lineage
    created_at: datetime
