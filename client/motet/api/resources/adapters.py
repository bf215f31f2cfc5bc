"""Committed adapters, as the API answers them."""

from datetime import datetime

from contract.messages.adapter_manifest import AdapterFile, Lineage
from contract.messages.peft_settings import PeftSettings
from contract.strict import Message


class Adapter(Message):
    """A committed adapter: a PEFT folder of immutable files. Of an uploaded one all of its training is None, and `settings` is
    there."""

    id: str
    name: str | None = None
    base_model: str | None = None  # services before 0.3 leave it out
    task_id: str | None
    job_id: str | None
    step: int | None
    averaged_steps: tuple[int, ...] = ()  # the steps whose weights it is the mean of; none: it has those of `step`
    val_loss: float | None
    bytes: int
    files: list[AdapterFile]
    lineage: Lineage | None
    settings: PeftSettings | None = None
    created_at: datetime
