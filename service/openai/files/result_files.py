"""A task's result files, generated on request: its curves as CSV, its jobs as JSONL, its best adapter as an archive.

Their ids derive from the task's: result-metrics-TASK, result-jobs-TASK, result-adapter-TASK (http/openai_ids.py shows them as
file-metrics-KEY and so on).
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy.orm import Session

from contract.messages.report_messages import Series
from contract.states import TASK_TERMINAL
from service.adapters.actions import winner_of
from service.adapters.models import Adapter
from service.http.openai_ids import OpenAiIds
from service.openai.files.file_objects import FileObject
from service.openai.jobs.job_objects import accuracy_is_of_tokens, result_ids
from service.openai.list_envelope import unix
from service.tasks.curves.curve_reader import Window, curves
from service.tasks.job_resource import jobs_of_task
from service.tasks.models import Task
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import find, missing

_PREFIX = "result-"
_NAMES = {"metrics": "metrics.csv", "jobs": "jobs.jsonl", "adapter": "adapter.tar.gz"}
# Names of OpenAI's results.csv, and the series behind them.
COLUMNS: dict[str, Series] = {
    "train_loss": "train_loss",
    "valid_loss": "val_loss",
    "train_accuracy": "train_accuracy",
    "valid_mean_token_accuracy": "val_accuracy",
}


@dataclass(frozen=True)
class Result:
    kind: str
    task: Task

    def filename(self, ids: OpenAiIds) -> str:
        return f"{ids.of(self.task.id)}-{_NAMES[self.kind]}"


def is_result(file_id: str) -> bool:
    return file_id.startswith(_PREFIX)


def find_result(session: Session, principal: Principal, file_id: str) -> Result:
    """The caller's result file. Raises NotFound, also before the task has ended."""
    kind, _, task_id = file_id.removeprefix(_PREFIX).partition("-")
    if kind not in _NAMES:
        raise missing("file", file_id)
    task = find(session, Task, task_id, principal, "file")
    if task.status not in TASK_TERMINAL or file_id not in result_ids(task):
        raise missing("file", file_id)
    return Result(kind, task)


def winners_adapter(session: Session, principal: Principal, task: Task) -> Adapter:
    """The adapter of the task's winner. Raises AdapterDeleted."""
    return winner_of(session, principal, task)


def describe(session: Session, principal: Principal, result: Result, ids: OpenAiIds) -> FileObject:
    """The file object. An archive's size is the sum of its files' sizes."""
    if result.kind == "adapter":
        size = sum(file.bytes for file in winners_adapter(session, principal, result.task).folder.files)
    else:
        size = sum(len(block) for block in text(session, principal, result))
    made = unix(result.task.ended_at or result.task.created_at)
    file_id, name = ids.of(f"{_PREFIX}{result.kind}-{result.task.id}"), result.filename(ids)
    return FileObject(id=file_id, bytes=size, created_at=made, filename=name, purpose="fine-tune-results")


def text(session: Session, principal: Principal, result: Result) -> Iterator[bytes]:
    """The content of a metrics or jobs file, one block per job."""
    jobs = jobs_of_task(session, principal, result.task.id)
    if result.kind == "jobs":
        for job in jobs:
            yield job.model_dump_json().encode() + b"\n"
        return
    yield ",".join(("job", "step", *COLUMNS)).encode() + b"\r\n"
    for job in jobs:
        yield _points(session, principal, result.task, job.index)


def _points(session: Session, principal: Principal, task: Task, index: int) -> bytes:
    """The job's rows, in order of steps. A cell is empty where there is no such point, and of a loss that was not finite."""
    of_tokens = accuracy_is_of_tokens(task)
    wanted = [series for series in COLUMNS.values() if of_tokens or not series.endswith("accuracy")]
    found = curves(session, principal, task.id, Window([index], wanted)).data
    told = {curve.series: dict(zip(curve.steps, curve.values, strict=True)) for curve in found}
    points = [told.get(series, {}) for series in COLUMNS.values()]
    out = io.StringIO()
    steps = sorted({step for series in points for step in series})
    csv.writer(out).writerows((index, step, *(series.get(step) for series in points)) for step in steps)
    return out.getvalue().encode()
