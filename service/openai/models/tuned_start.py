"""What a job goes on from whose `model` is a tuned model. Pure."""

from dataclasses import dataclass

from contract.messages.peft_settings import PeftSettings
from contract.task_spec import Precision


@dataclass(frozen=True)
class TunedStart:
    """A tuned model that a job goes on from: its adapter, that one's shape, and its base."""

    adapter_id: str
    base_model: str
    precision: Precision
    config: PeftSettings
