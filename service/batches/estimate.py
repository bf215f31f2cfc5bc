"""Estimates a batch without creating it: when each of its tasks would start and end, planned together.

Stores nothing. Plans by the rules alone (scheduler/core/rules.py, multifit.py), since a request must not wait for a solver.
"""

from datetime import datetime, timedelta
from typing import Literal

from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from contract.batch_spec import BatchSpec
from service.batches.models import Batch
from service.database.engine import new_id
from service.dependencies import Dependencies
from service.scheduler.core.joins.joining import joined_plan_by_rules
from service.scheduler.dry_run import DraftPlan, asked_of
from service.scheduler.estimate_resource import EstimateResource
from service.scheduler.state import snapshot
from service.scheduler.state.snapshot import Snapshot
from service.tasks.submission.spec_checks import ResolvedRefs
from service.usage.prices import read_prices


class BatchEstimateResource(BaseModel):
    """What the batch would take if it were posted now."""

    object: Literal["batch_estimate"] = "batch_estimate"
    objective: str
    gpu_seconds: float = Field(description="Expected, of all tasks")
    makespan_seconds: float | None = Field(
        description="From now until the last task ends; one that may only start later is taken to start at its not_before. "
        "Null where one fits no node"
    )
    expected_end: datetime | None
    late: bool = Field(description="Whether the deadline would be missed")
    tasks: list[EstimateResource] = Field(description="In the order in which they were given")


def batch_dry_run(
    session: Session, dependencies: Dependencies, tenant_id: str, spec: BatchSpec, refs: list[ResolvedRefs]
) -> BatchEstimateResource:
    """The estimate for a batch that has passed preflight. The session's transaction must be new and see all tenants' rows."""
    batch = Batch(id=new_id("asked"), tenant_id=tenant_id, objective=spec.objective, deadline=spec.deadline, task_ids=[])
    asked = [asked_of(tenant_id, one, files, batch.id) for one, files in zip(spec.tasks, refs, strict=True)]
    seen = snapshot.read(session, dependencies, asked=asked, batch=batch)
    plan = joined_plan_by_rules(seen.problem)
    draft = DraftPlan(seen, plan, read_prices(session, dependencies.settings))
    tasks = [draft.estimate(dependencies, one.task, spec.tasks[at], refs[at]) for at, one in enumerate(asked)]
    ends = [_end(seen, one.task.id, told) for one, told in zip(asked, tasks, strict=True)]
    known = [end for end in ends if end is not None]
    end = max(known) if len(known) == len(ends) else None
    return BatchEstimateResource(
        objective=spec.objective,
        gpu_seconds=sum(task.gpu_seconds.expected for task in tasks),
        makespan_seconds=None if end is None else (end - seen.at).total_seconds(),
        expected_end=end,
        late=spec.deadline is not None and (end or seen.at) > spec.deadline,
        tasks=tasks,
    )


def _end(seen: Snapshot, task_id: str, told: EstimateResource) -> datetime | None:
    """When the task would end; None if it fits no node. No plan holds those in `later`, so they are taken to start in time."""
    if task_id not in seen.later:
        return told.expected_end
    alone = min((kind.seconds.expected for kind in told.device_types), default=None)
    return None if alone is None else seen.later[task_id] + timedelta(seconds=alone)
