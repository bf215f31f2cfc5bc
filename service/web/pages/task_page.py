"""One task: its jobs, curves, what each hyperparameter was worth, what happened, and what can be done to it."""

from collections import Counter
from typing import Annotated, Literal

import yaml
from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import Field
from sqlalchemy import func, select

from contract.states import TASK_TERMINAL
from service.adapters.models import Adapter
from service.adapters.resource import AdapterResource
from service.app_state import Config, DependenciesDep, QueueDep, WakeupsDep
from service.authentication import Db, Writer
from service.fleet.models import Placement
from service.mirrors.task_mirrors import mirrors_of
from service.scheduler.models import PlanChange
from service.tasks import actions
from service.tasks.adapter_queries import adapters_of
from service.tasks.job_resource import jobs_of_task
from service.tasks.lifecycle.event_log import newest
from service.tasks.models import Task
from service.tasks.plan_status.plan_history import PlanChangeResource
from service.tasks.resource import render as resources_of
from service.tenants.tenant_scope import find, scoped
from service.usage.prices import costs_of_tasks, read_prices
from service.usage.usage_queries import gpu_seconds_of
from service.web.page_route import pages
from service.web.rendering import render
from service.web.session.viewer import Looking
from service.web.views import curve_image
from service.web.views.askable import askable
from service.web.views.curve_pack import curve_pack
from service.web.views.generated_texts import generated_texts
from service.web.views.job_rows import adapter_rows, importance, job_table, saved_by_reason, winners_words
from service.web.views.spec_differences import in_order
from service.web.views.task_history import TOLD, happenings
from service.web.views.task_rows import expected_end, jobs_bar, planned_end, progress

router = pages()

_EVENTS, _PLANS, _ADAPTERS = 200, 20, 100
_PASSES = select(func.sum(Placement.forwards)).join(Task, Task.id == Placement.task_id)
Act = Literal["cancel", "delete"]


@router.get("/tasks/{task_id}")
def show_task(task_id: str, viewer: Looking, db: Db, settings: Config, request: Request, sort: str = "best") -> Response:
    reader = viewer.principal
    with db.begin() as session:
        row = find(session, Task, task_id, reader, "task")
        (task,) = resources_of(session, [row])
        jobs = jobs_of_task(session, reader, task_id)
        kept = adapters_of(reader).where(Adapter.task_id == task_id)
        kept = kept.order_by(Adapter.job_id.is_distinct_from(row.winner_job_id), Adapter.val_loss).limit(_ADAPTERS)
        own = {task_id: (row.name, row.winner_job_id)}
        stored = adapter_rows([AdapterResource.of(one) for one in session.scalars(kept)], own)
        changes = scoped(select(PlanChange).where(PlanChange.task_id == task_id), PlanChange, reader)
        plans = session.scalars(changes.order_by(PlanChange.created_at.desc()).limit(_PLANS))
        told = happenings(newest(session, reader, task_id, TOLD, _EVENTS), [PlanChangeResource.of(one) for one in plans])
        passes = session.scalar(scoped(_PASSES.where(Task.id == task_id), Task, reader)) or 0
        seconds, ends, last_event = gpu_seconds_of(session, reader, task_id), planned_end(session, task_id), row.last_event
        cost = costs_of_tasks(session, reader, read_prices(session, settings), None, [task_id])[task_id]
        mirrors = mirrors_of(session, reader, task_id)
        ask = askable(session, reader, row, jobs, stored)
        texts = generated_texts(session, reader, row, task.winner.index if task.winner is not None else None)
    table = job_table(jobs, sort, row.winner_job_id)
    exits = Counter(job.exit.reason.value for job in jobs if job.exit is not None)
    return render(
        request,
        "task.html",
        task=task,
        table=table,
        verdict=winners_words(task, jobs),
        job_of={job.id: job for job in jobs},
        bar=jobs_bar(task.jobs, exits),
        adapters=stored,
        history=told,
        texts=texts,
        mirrors=mirrors,
        ask=ask,
        worths=importance(table),
        saved=saved_by_reason(task, jobs),
        passes=passes if passes < task.progress.steps_done else None,
        done=progress(task),
        ends=expected_end(task, ends),
        gpu_seconds=seconds,
        cost=cost,
        currency=settings.currency,
        last_event=last_event,
        open=task.status not in TASK_TERMINAL,
        spec=yaml.safe_dump(in_order(task.spec), sort_keys=False, allow_unicode=True),
    )


@router.get("/tasks/{task_id}/curves")
def get_curves(
    task_id: str,
    viewer: Looking,
    db: Db,
    job: Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Query(max_length=1024)] = [],  # noqa: B006  (FastAPI copies it)
    from_step: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
) -> Response:
    reader = viewer.principal
    with db.begin() as session:
        find(session, Task, task_id, reader, "task")
        jobs = len(job) or len(jobs_of_task(session, reader, task_id))
        return JSONResponse(curve_pack(session, reader, task_id, jobs, job, from_step))


@router.get("/tasks/{task_id}/curves.svg")
def get_curve_image(task_id: str, viewer: Looking, db: Db) -> Response:
    """What the page shows where scripts are off."""
    reader = viewer.principal
    with db.begin() as session:
        row = find(session, Task, task_id, reader, "task")
        jobs = jobs_of_task(session, reader, task_id)
        drawn = curve_image.draw(jobs, curve_pack(session, reader, task_id, len(jobs), [], 0), row.winner_job_id)
    return Response(drawn, media_type="image/svg+xml")


@router.get("/tasks/{task_id}/{act}")
def confirm(task_id: str, act: Act, viewer: Looking, writer: Writer, db: Db, request: Request) -> Response:
    """Names what will be done, and what stays."""
    with db.begin() as session:
        (task,) = resources_of(session, [find(session, Task, task_id, writer, "task")])
        kept = len(session.scalars(adapters_of(writer).where(Adapter.task_id == task_id)).all())
    return render(request, "confirm_task.html", task=task, act=act, kept=kept)


@router.post("/tasks/{task_id}/cancel")
def cancel_task(task_id: str, writer: Writer, db: Db, queue: QueueDep, wakeups: WakeupsDep) -> Response:
    with db.begin() as session:
        actions.cancel(session, queue, wakeups, writer, task_id)
    return _back(task_id)


@router.post("/tasks/{task_id}/pause")
def pause_task(task_id: str, writer: Writer, db: Db, dependencies: DependenciesDep) -> Response:
    with db.begin() as session:
        actions.pause(session, dependencies, writer, task_id)
    return _back(task_id)


@router.post("/tasks/{task_id}/resume")
def resume_task(task_id: str, writer: Writer, db: Db, dependencies: DependenciesDep) -> Response:
    with db.begin() as session:
        actions.resume(session, dependencies, writer, task_id)
    return _back(task_id)


@router.post("/tasks/{task_id}/archive")
def archive_task(task_id: str, writer: Writer, db: Db) -> Response:
    with db.begin() as session:
        task = find(session, Task, task_id, writer, "task")
        actions.archive(session, writer, task_id, task.archived_at is None)
    return _back(task_id)


@router.post("/tasks/{task_id}/delete")
def delete_task(task_id: str, writer: Writer, db: Db) -> Response:
    with db.begin() as session:
        actions.delete(session, writer, task_id)
    return RedirectResponse("/tasks?deleted=1", 303)


def _back(task_id: str) -> Response:
    return RedirectResponse(f"/tasks/{task_id}", 303)
