"""Makes placements of tasks, whose files are on the fleet at once."""

import itertools
from collections.abc import Callable
from typing import Any

from contract.messages.placement_messages import BaseModelRef, JobAssignment, Placement
from contract.states import JobStatus
from contract.task_spec import TaskSpec
from tests.worker.corpus import jsonl, rows
from tests.worker.fleet import Fleet


def placer(fleet: Fleet, base: BaseModelRef) -> Callable[..., Placement]:
    """Makes placements of tasks: `(space, rows, **more of the spec)`. Their files are on the fleet at once. A job is evaluated
    as often, and on the same rows, alone and among others, which the product's share of evaluations would not give."""
    numbers = itertools.count(1)

    def place(space: dict[str, Any], data: list[dict[str, Any]] | None = None, **spec: Any) -> Placement:
        number = next(numbers)
        file = fleet.add_file(f"file_{number}", jsonl(data if data is not None else rows(40)))
        dataset = {"file_id": file.file_id, "validation_fraction": 0.1, **spec.pop("dataset", {})}
        spec["early_exit"] = {"max_evaluation_share": None, **spec.get("early_exit", {})}  # so few rows are all read each time
        made = TaskSpec.model_validate({"base_model": "tiny", "dataset": dataset, "search_space": space, **spec})
        key = f"p{number}"
        return Placement(
            placement_id=key,
            fence=1,
            token=f"token-{key}",
            lease_seconds=fleet.lease_seconds,
            task_id=f"task_{number}",
            device_indexes=[0],
            base=base.model_copy(update={"precision": made.precision}),
            train_file=file,
            validation_file=None,
            spec=made,
            jobs=[
                JobAssignment(
                    job_id=f"job_{number}_{index}",
                    index=index,
                    config=config,
                    proposed=index in made.search_space.rounds[0],
                    status=JobStatus.PENDING,
                )
                for index, config in enumerate(made.jobs())
            ],
        )

    return place
