"""HTTP routes: the schedule, a task's plan history, and estimates."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Request
from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.task_spec import TaskSpec
from service.app_state import DependenciesDep, GradersDep, state_of
from service.authentication import Db, Reader
from service.database.engine import Database
from service.dependencies import Dependencies
from service.graders.endpoint_graders import EndpointGraders
from service.http.concurrency_limits import Estimating
from service.http.pagination import MAX_LIMIT, Cursor, Limit, Page, page
from service.http.response_schemas import problems
from service.scheduler.dry_run import dry_run
from service.scheduler.estimate_resource import EstimateResource
from service.scheduler.explain.schedule_view import Schedule, schedule
from service.scheduler.models import PlanChange
from service.tasks.models import Task
from service.tasks.plan_status.plan_history import PlanChangeResource
from service.tasks.submission.spec_checks import SpecChecker
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import find, scoped

Spec = TypeVar("Spec")
Refs = TypeVar("Refs")
Found = TypeVar("Found")


async def _counted(request: Request, reader: Reader) -> None:
    """Raise RateLimitExceeded if the tenant has used up its estimates for this minute."""
    state = state_of(request)
    await state.rates.take(f"{reader.tenant_id}:estimates", state.settings.estimates_per_minute, "estimates of this tenant")


@dataclass(frozen=True)
class Estimator:
    """Estimates for one request, which is counted against its tenant's limit and computes while no other estimate does."""

    reader: Principal
    db: Database
    dependencies: Dependencies
    graders: EndpointGraders

    def estimate(
        self,
        spec: Spec,
        check: Callable[[SpecChecker, Spec], Refs],
        run: Callable[[Session, Dependencies, str, Spec, Refs], Found],
    ) -> Found:
        """What `run` finds for the spec, with what `check` found it to refer to. Raises what `check` refuses."""
        with self.db.begin() as session:
            refs = check(SpecChecker(session, self.reader, self.graders), spec)
        with self.dependencies.db.begin() as session:
            return run(session, self.dependencies, self.reader.tenant_id, spec, refs)


async def _estimator(
    reader: Reader,
    db: Db,
    dependencies: DependenciesDep,
    graders: GradersDep,
    counted: Annotated[None, Depends(_counted)],
    limited: Estimating,
) -> Estimator:
    return Estimator(reader, db, dependencies, graders)


EstimatorDep = Annotated[Estimator, Depends(_estimator)]  # declare as a route's last parameter: it waits for its turn
router = APIRouter(prefix="/v1", responses=problems(401, 403))


@router.get(
    "/schedule",
    tags=["schedule"],
    operation_id="get_schedule",
    summary="Get what runs where, what waits, why, and until when",
    description=(
        "Your own tasks are named; others are only counted. It comes in pages: first the nodes by name, and behind the last of "
        "them what waits, in the order of the expected starts."
    ),
    responses=problems(422),
)
def get_schedule(reader: Reader, dependencies: DependenciesDep, cursor: Cursor = None, limit: Limit = MAX_LIMIT) -> Schedule:
    with dependencies.db.begin() as session:
        return schedule(session, dependencies.settings, reader.tenant_id, cursor, limit)


@router.get(
    "/tasks/{task_id}/plan-history",
    tags=["tasks"],
    operation_id="list_task_plan_history",
    summary="List what was planned for a task, the newest first",
    responses=problems(404, 422),
)
def list_plan_history(
    task_id: str, reader: Reader, db: Db, cursor: Cursor = None, limit: Limit = 20
) -> Page[PlanChangeResource]:
    with db.begin() as session:
        find(session, Task, task_id, reader, "task")
        changes = scoped(select(PlanChange).where(PlanChange.task_id == task_id), PlanChange, reader)
        return page(session, changes, PlanChange, cursor, limit, lambda rows: [PlanChangeResource.of(row) for row in rows])


@router.post(
    "/tasks/estimate",
    tags=["tasks"],
    operation_id="estimate_task",
    summary="Estimate a task without making it",
    description=(
        "Says what the task would take and when it would start and end if it were posted now. Nothing is stored. A tenant may "
        "ask for a number of estimates a minute, which a refusal names."
    ),
    responses=problems(400, 413, 422, 429),
)
def estimate_task(spec: TaskSpec, estimator: EstimatorDep) -> EstimateResource:
    return estimator.estimate(spec, SpecChecker.check, dry_run)
