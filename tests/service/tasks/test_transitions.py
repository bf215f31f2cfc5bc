"""Transitions: one module changes statuses, and writes the same for one row as for a set of rows. Another inserts new tasks."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from contract.states import JOB_TERMINAL, TASK_TERMINAL, TASK_TRANSITIONS, IllegalTransition, JobStatus, TaskStatus
from service.database.engine import clock
from service.tasks.lifecycle import transitions
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.models import Job, Task, TaskEvent
from service.tasks.submission import task_insertion
from service.webhooks.webhook_messages import types_of
from tests.service.sample_tasks import jobs_of

SERVICE = Path(transitions.__file__).parents[2]
WRITERS = {Path(transitions.__file__), Path(task_insertion.__file__)}  # of stored tasks, and of new ones
GUARDED = {"status", "fence"}
OTHERS = {"node", "delivery", "upload", "merged"}  # rows of other tables that have a `status` or `fence` of their own
ANSWERS = {"idempotency/idempotency_store.py"}  # an answer's status is HTTP's
IMPORTS = {"database/claimed_rows.py"}  # the status of work in the background, of tables of its own
UNSTORED = {"scheduler/dry_run.py"}  # describes a task that nobody submits, for an estimate
SQL = re.compile(r"\b(?:UPDATE|INSERT\s+INTO)\s+(?:tasks|jobs)\b(.*)", re.DOTALL)


def _assigned(target: ast.expr) -> Iterator[ast.Attribute]:
    for node in ast.walk(target):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in GUARDED:
            yield node


def _texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every string, an f-string with its values left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "?" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def written_statuses(source: str) -> list[str]:
    """Places that write the status or the fence of a task or a job: assignments, statements and SQL."""
    found, tree = [], ast.parse(source)
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            for one in (attribute for target in targets if target is not None for attribute in _assigned(target)):
                if ast.unparse(one.value) not in OTHERS:
                    found.append(f"{node.lineno}: {ast.unparse(one)}")
        if not isinstance(node, ast.Call):
            continue
        names, called = {keyword.arg for keyword in node.keywords}, ast.unparse(node.func)
        if called == "setattr" and isinstance(node.args[1], ast.Constant) and node.args[1].value in GUARDED:
            found.append(f"{node.lineno}: setattr")
        if called in {"Task", "Job"} and names & GUARDED:
            found.append(f"{node.lineno}: {called}({', '.join(sorted(names & GUARDED))}=)")
        if called.endswith(".values") and names & GUARDED and re.search(r"\b(?:update|insert)\((?:Task|Job)\b", called):
            found.append(f"{node.lineno}: {called}")
    for line, text in _texts(tree):
        said = SQL.search(text)
        if said is not None and any(re.search(rf"\b{name}\b\s*(?:=|,|\))", said[1]) for name in GUARDED):
            found.append(f"{line}: {text.strip()[:60]}")
    return found


def test_no_other_module_writes_a_status():
    found = [
        f"{path.relative_to(SERVICE)}:{place}"
        for path in sorted(SERVICE.rglob("*.py"))
        if path not in WRITERS and str(path.relative_to(SERVICE)) not in UNSTORED | ANSWERS | IMPORTS
        for place in written_statuses(path.read_text())
    ]
    assert not found, "\n".join(found)
    assert all(len(written_statuses(path.read_text())) >= 2 for path in WRITERS)  # it is found where it is


@pytest.mark.parametrize(
    "source",
    [
        "task.status = after",
        "self._task.status, task.error = after, error",
        "job.status: str = after",
        "task.fence += 1",
        "setattr(job, 'status', after)",
        "Task(id=id, status=after)",
        "session.execute(update(Job).where(Job.task_id == id).values(status=after, ended_at=now))",
        "text(\"UPDATE tasks SET waiting = NULL, status = 'queued' WHERE id = :id\")",
        "text(f'INSERT INTO jobs (id, {columns}, status) SELECT 1')",
    ],
)
def test_a_status_written_elsewhere_would_be_found(source):
    assert written_statuses(source)


IN_SETS = [(before, after) for before, allowed in TASK_TRANSITIONS.items() for after in sorted(allowed) if not types_of(after)]


def _row(task: Task) -> dict[str, object]:
    """The task's columns; times only as whether they are set, since each clock reading differs."""
    apart = {"id", "train_file_id", "created_at", "request_id"}
    row = {column.key: getattr(task, column.key) for column in Task.__mapper__.column_attrs if column.key not in apart}
    return {name: value is not None if name.endswith("_at") else value for name, value in row.items()}


@pytest.mark.parametrize(("before", "after"), IN_SETS)
def test_a_set_of_tasks_is_moved_as_each_of_them_would_be(tenant, database, before, after):
    spec = tenant.spec(tenant.file())
    alone, in_set, elsewhere, desired = (tenant.post("/v1/tasks", json=spec).json()["id"] for _ in range(4))
    with database.begin() as session:
        for task_id in (alone, in_set, elsewhere, desired):
            task = session.get_one(Task, task_id)
            task.status = task.told_status = before
            task.requeue_reason, task.error = "paused", None
        session.get_one(Task, elsewhere).status = TaskStatus.FAILED
        session.get_one(Task, desired).desired_status = "paused"
    with database.begin() as session:
        task = session.get_one(Task, alone)
        transitions.enter(task, after, clock(session))
        bump_version_and_notify(session, task)
    with database.begin() as session:
        moved = transitions.SetTransition(before, after).run(session, [in_set, elsewhere, desired])
        assert moved == {in_set: (session.get_one(Task, in_set).request_id, None)}
    with database.begin() as session:
        one, other = (session.get_one(Task, task_id) for task_id in (alone, in_set))
        assert _row(one) == _row(other)
        assert other.status == after
        events = [
            session.execute(
                select(TaskEvent.number, TaskEvent.kind, TaskEvent.data, TaskEvent.tenant_id).where(
                    TaskEvent.task_id == task_id
                )
            ).all()
            for task_id in (alone, in_set)
        ]
        assert sorted(events[0]) == sorted(events[1])
        assert session.get_one(Task, elsewhere).version == session.get_one(Task, desired).version == 1


def test_tasks_that_webhooks_hear_of_move_one_by_one():
    with pytest.raises(ValueError, match="one by one"):
        transitions.SetTransition(TaskStatus.QUEUED, TaskStatus.RUNNING)
    with pytest.raises(IllegalTransition):
        transitions.SetTransition(TaskStatus.SUCCEEDED, TaskStatus.QUEUED)


def test_jobs_are_cancelled_together_as_alone(tenant, database):
    together, alone = (tenant.task()["id"] for _ in range(2))
    with database.begin() as session:
        for task_id in (together, alone):
            first, second = jobs_of(session, task_id)
            first.status, second.status = JobStatus.TRAINING, JobStatus.COMPLETED
            first.checkpoint = {"step": 1}
    with database.begin() as session:
        now = clock(session)
        transitions.cancel_jobs(session, together, now)
        transitions.enter_job(jobs_of(session, alone)[0], JobStatus.CANCELLED, now)
    with database.begin() as session:
        apart = {"id", "task_id"}
        rows = [
            [{c.key: getattr(job, c.key) for c in Job.__table__.columns if c.key not in apart} for job in jobs_of(session, id)]
            for id in (together, alone)
        ]
        assert rows[0] == rows[1]
        assert [job["status"] for job in rows[0]] == ["cancelled", "completed"]


def test_every_status_says_what_it_writes():
    assert set(transitions.ON_TASK_ENTER) == set(TaskStatus) - {TaskStatus.VALIDATING}
    assert set(transitions.ON_JOB_ENTER) == set(JobStatus) - {JobStatus.PENDING}
    assert all(transitions.ON_TASK_ENTER[status]["ended_at"] is transitions.TimeColumn.NOW for status in TASK_TERMINAL)
    assert all(transitions.ON_JOB_ENTER[status]["ended_at"] is transitions.TimeColumn.NOW for status in JOB_TERMINAL)
