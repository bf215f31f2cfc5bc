"""What a replica needs to know of a job to train it: values. Knows no progress and no places in an arena."""

from dataclasses import dataclass, field

from contract.job_config import JobConfig
from worker.data.dataset import DataSet, Order
from worker.model.arena import Slot
from worker.policy.activations import Activations
from worker.policy.job_record import JobKey
from worker.replicas.dpo_reference import Reference


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """Fixed for as long as the job is on the executor. reference: under dpo. activations: the task's, shared by its jobs."""

    key: JobKey
    config: JobConfig
    data: DataSet
    total_steps: int
    max_grad_norm: float
    activations: Activations = field(default_factory=lambda: Activations(False, "activations are kept"))
    reference: Reference | None = None
    order: Order = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", Order(len(self.data.train), self.config.batch_size, self.config.seed))


@dataclass(frozen=True, eq=False)
class JobStep:
    """An optimizer step of a job, and the slot that holds its adapter. number: of the step, counted from 0."""

    job: TrainingJob
    slot: Slot
    number: int
