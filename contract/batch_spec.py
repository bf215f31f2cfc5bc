"""BatchSpec: tasks that are posted together, to be planned for one objective. Knows no planner."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from contract.strict import STORABLE, Moment, Strict
from contract.task_spec import Name, TaskSpec

MOST_TASKS = 64

BatchObjective = Literal["makespan", "weighted_completion"]


class BatchSpec(Strict):
    """Tasks to be planned together. Each is a task of its own: it has its events, its winner and its adapter."""

    name: Name | None = None
    objective: BatchObjective = Field(
        default="makespan",
        description=(
            "What the plan minimizes for the batch: makespan, the end of its last task; weighted_completion, the sum of the "
            "tasks' ends, each times its weight, as for tasks that are posted alone. Nobody else's tasks start later for it."
        ),
    )
    deadline: Moment | None = Field(
        default=None, description="When the whole batch should have ended: a deadline of each task that has no earlier one."
    )
    labels: Annotated[dict[Name, Annotated[str, Field(max_length=512), STORABLE]], Field(max_length=16)] = Field(default={})
    tasks: Annotated[list[TaskSpec], Field(min_length=1, max_length=MOST_TASKS)]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for index, task in enumerate(self.tasks):
            if self.deadline is not None and task.not_before is not None and self.deadline <= task.not_before:
                raise ValueError(f"'deadline' does not lie after 'not_before' of tasks[{index}]")
        return self
