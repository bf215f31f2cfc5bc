"""What a job goes on from whose `model` is a tuned model. Pure."""

from dataclasses import dataclass

from contract.search_space import JobConfig
from contract.task_spec import Precision


@dataclass(frozen=True)
class TunedStart:
    """A tuned model that a job goes on from: its adapter, and the configuration and base that trained it."""

    adapter_id: str
    base_model: str
    precision: Precision
    config: JobConfig
