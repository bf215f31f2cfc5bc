"""What the planner sees: the fleet, what runs, what waits, read from Postgres at one moment and turned into a Problem.

Decides nothing. The fences it read go back into the writing, which drops every task that has moved on.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.spec import JobConfig, Schedule, TaskSpec
from contract.states import JobStatus, TaskStatus
from service.db import clock
from service.files.models import File
from service.fleet.models import BaseModel, Node, Placement
from service.scheduler import problem as p
from service.scheduler.estimate import assumed_rate, expected_tokens, seconds_for, tokens_per_row
from service.scheduler.models import Plan, PlanRequest
from service.scheduler.survival import JobProgress
from service.tasks.models import Job, Task

_WEIGHT = 100  # of priority 1 on arrival; weights are whole numbers
_AGING_SECONDS = 3600  # a task that has waited this long weighs twice, so that nobody starves
_WEIGHT_BYTES = 2  # of one parameter, at the least


@dataclass(frozen=True)
class Snapshot:
    """`tasks` are the queued ones by id, with their specs' base model; `needs` the bytes a GPU must have for each."""

    at: datetime
    requests: tuple[int, ...]
    problem: p.Problem
    tasks: dict[str, Task]
    nodes: dict[str, Node]
    needs: dict[str, int]


def read(session: Session) -> Snapshot:
    """The present moment. The session's transaction must be repeatable read and new."""
    session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
    requests = tuple(session.scalars(select(PlanRequest.id).order_by(PlanRequest.id)))
    nodes = list(session.scalars(select(Node).where(Node.status == "ready").order_by(Node.id)))
    live = session.execute(
        select(Placement, Task)
        .join(Task, Task.id == Placement.task_id)
        .where(Placement.ended_at.is_(None), Placement.node_id.in_([node.id for node in nodes]))
        .order_by(Placement.id)
    ).all()
    queued = list(session.scalars(select(Task).where(Task.status == TaskStatus.QUEUED).order_by(Task.created_at, Task.id)))
    work = _Work(session, [task for _, task in live] + queued)
    by_id = {node.id: node for node in nodes}
    running = [
        p.Running(task.id, placed.node_id, len(placed.device_indexes), work.seconds(task, by_id[placed.node_id]))
        for placed, task in live
    ]
    now, planned = clock(session), _planned(session)
    fleet = tuple(p.Node(node.id, len(node.devices), node.drained_at is not None) for node in nodes)
    waiting = [
        p.Queued(
            task.id,
            task.gpus,
            _weight(task, now),
            tuple(work.seconds(task, node) if work.fits(task, node) else None for node in nodes),
            planned.get(task.id),
        )
        for task in queued
    ]
    return Snapshot(
        at=now,
        requests=requests,
        problem=p.Problem(fleet, tuple(running), tuple(waiting)),
        tasks={task.id: task for task in queued},
        nodes=by_id,
        needs={task.id: work.bytes_per_gpu(task) for task in queued},
    )


def memory_of(node: Node) -> int:
    """Bytes of the node's smallest device."""
    return min(int(str(device["memory_bytes"])) for device in node.devices)


def _weight(task: Task, now: datetime) -> int:
    waited = max(0.0, (now - task.created_at).total_seconds())
    return round(_WEIGHT * task.priority * (1 + waited / _AGING_SECONDS))


def _planned(session: Session) -> dict[str, str]:
    """The node that the last plan meant each waiting task for."""
    last = session.scalar(select(Plan.decision).order_by(Plan.id.desc()).limit(1))
    return {start["task"]: start["node"] for start in (last or {}).get("starts", ()) if start["start"] > 0}


class _Work:
    """How much the tasks still have to do."""

    def __init__(self, session: Session, tasks: Iterable[Task]) -> None:
        tasks = list(tasks)
        self._bases = {base.name: base for base in session.scalars(select(BaseModel))}
        files = {id for task in tasks for id in (task.train_file_id, task.validation_file_id) if id}
        self._files = {file.id: file for file in session.scalars(select(File).where(File.id.in_(files)))}
        jobs: dict[str, list[Any]] = defaultdict(list)
        columns = (Job.task_id, Job.status, Job.step, Job.total_steps, Job.warmup_steps, Job.config, Job.promoted)
        for row in session.execute(select(*columns).where(Job.task_id.in_([task.id for task in tasks]))):
            jobs[row.task_id].append(row)
        self._tokens = {task.id: self._expected(task, jobs[task.id]) for task in tasks}

    def bytes_per_gpu(self, task: Task) -> int:
        """What the base's weights take of each GPU, at the least."""
        return self._bases[task.base_model].parameters * _WEIGHT_BYTES // task.gpus

    def fits(self, task: Task, node: Node) -> bool:
        return task.gpus <= len(node.devices) and self.bytes_per_gpu(task) <= memory_of(node)

    def seconds(self, task: Task, node: Node) -> int:
        rate = node.tokens_per_second.get(task.base_model)
        if rate is None:
            rate = assumed_rate(str(node.devices[0]["type"]), self._bases[task.base_model].parameters)
        return seconds_for(self._tokens[task.id], rate, task.gpus)

    def _expected(self, task: Task, jobs: list[Any]) -> float:
        spec, file = TaskSpec.model_validate(task.spec), self._files[task.train_file_id]
        held_out = 0.0 if task.validation_file_id else spec.dataset.validation_fraction
        rows = task.train_rows or max(1, round(file.rows * (1 - held_out)))
        known = [_progress(spec, job, rows) for job in jobs]
        return expected_tokens(known, spec.early_exit, tokens_per_row(file.bytes, file.rows, spec.training.max_seq_len))


def _progress(spec: TaskSpec, job: Any, rows: int) -> JobProgress:
    config = JobConfig.model_validate(job.config)
    total, warmup = job.total_steps, job.warmup_steps
    if total is None or warmup is None:
        calendar = Schedule.of(spec, config, rows)
        total, warmup = calendar.total_steps, calendar.warmup_steps
    return JobProgress(JobStatus(job.status), job.step, total, warmup, config.batch_size, job.promoted)
