"""`from motet import Client`: the service's API as Python calls, for scripts and for the command line.

    client = Client()                                  # MOTET_API_URL and MOTET_API_KEY, else the local stack's
    file = client.files.upload("rows.jsonl")
    task = client.tasks.create({"base_model": "example-7m", "dataset": {"file_id": file.id}, "search_space": {...}})
    task = client.tasks.wait(task.id)
    client.adapters.download(task.winner.adapter_id, "my-adapter")

Knows the routes; its errors are in motet.api.errors. Threads may share a Client.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from contract.states import TaskStatus
from contract.task_spec import TaskSpec
from contract.wire import Series
from motet.api import credentials
from motet.api.adapter_download import download
from motet.api.errors import MotetError, NoCredentials, TaskNotDone
from motet.api.resources import Adapter, Curve, File, Job, Model, Node, PlanChange, Schedule, Task
from motet.api.transport import Transport
from motet.display.preview import Preview

_LONGEST_WAIT = 50.0  # seconds one request may wait for a change


class Files:
    """Immutable JSONL data sets."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def upload(self, path: str | Path, name: str | None = None) -> File:
        """Upload chat or prompt/completion rows. Raises ApiError with each wrong line, MotetError if the file cannot be
        read."""
        path = Path(path)
        try:
            with path.open("rb") as rows:
                answer = self._transport.make("/v1/files", files={"file": (name or path.name, rows)})
        except OSError as error:
            raise MotetError(f"cannot read {path}: {error.strerror}") from error
        return File.model_validate(answer.json())

    def get(self, file_id: str) -> File:
        return File.model_validate(self._transport.get(f"/v1/files/{file_id}").json())

    def list(self, unused: bool | None = None) -> Iterator[File]:
        """The tenant's files, newest first. `unused`: only those that no task names, or only the others."""
        return map(File.model_validate, self._transport.pages("/v1/files", {"unused": unused}))

    def preview(self, file_id: str, base_model: str, **more: Any) -> Preview:
        """Rows as a task would train on them. `more`: objective, max_seq_len, first_line, rows, as in the API."""
        body = {"file_id": file_id, "base_model": base_model} | more
        return Preview.model_validate(self._transport.post("/v1/files/preview", json=body).json())

    def delete(self, file_id: str) -> None:
        self._transport.delete(f"/v1/files/{file_id}")


class Tasks:
    """Searches, their jobs and their loss curves."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, spec: TaskSpec | Mapping[str, Any]) -> Task:
        """Submit a task. A mapping is checked by the service, whose ApiError names each wrong field."""
        body = spec.model_dump(mode="json", exclude_unset=True) if isinstance(spec, TaskSpec) else dict(spec)
        return Task.model_validate(self._transport.make("/v1/tasks", json=body).json())

    def get(self, task_id: str) -> Task:
        return Task.model_validate(self._transport.get(f"/v1/tasks/{task_id}").json())

    def list(self, status: TaskStatus | str | None = None) -> Iterator[Task]:
        """The tenant's tasks, newest first."""
        return map(Task.model_validate, self._transport.pages("/v1/tasks", {"status": status}))

    def cancel(self, task_id: str) -> Task:
        """Cancel the task, which is final at once; committed adapters stay downloadable."""
        return Task.model_validate(self._transport.post(f"/v1/tasks/{task_id}/cancel").json())

    def pause(self, task_id: str) -> Task:
        """Take the task out of the queue, or off its node once its jobs are checkpointed; no training is lost."""
        return Task.model_validate(self._transport.post(f"/v1/tasks/{task_id}/pause").json())

    def resume(self, task_id: str) -> Task:
        """Put a paused task back into the queue."""
        return Task.model_validate(self._transport.post(f"/v1/tasks/{task_id}/resume").json())

    def delete(self, task_id: str) -> None:
        """Delete an ended task for good, with its jobs, curves and adapters. Raises ApiError (`task_open`) until it has
        ended."""
        self._transport.delete(f"/v1/tasks/{task_id}")

    def plan_history(self, task_id: str) -> Iterator[PlanChange]:
        """The plans made for the task, newest first."""
        return map(PlanChange.model_validate, self._transport.pages(f"/v1/tasks/{task_id}/plan-history"))

    def follow(self, task_id: str, every: float = 30.0) -> Iterator[Task]:
        """The task now, then at each change and at least every `every` seconds, until it has ended.

        Survives a restart of the API.
        """
        etag: str | None = None
        task: Task | None = None
        every = min(every, _LONGEST_WAIT)
        while task is None or not task.ended:
            query, headers = ({"wait": every}, {"If-None-Match": etag}) if etag else (None, None)
            answer = self._transport.get(f"/v1/tasks/{task_id}", query, headers, wait=every)
            if answer.status_code != 304 or task is None:
                task, etag = Task.model_validate(answer.json()), answer.headers.get("etag")
            yield task

    def wait(self, task_id: str, timeout: float | None = None) -> Task:
        """The task once it has ended, in any status. Raises TaskNotDone after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        every = _LONGEST_WAIT if timeout is None else min(_LONGEST_WAIT, max(timeout, 0.1))
        for task in self.follow(task_id, every):
            if task.ended:
                return task
            if deadline is not None and time.monotonic() >= deadline:
                raise TaskNotDone(f"{task_id} is still {task.status} after {timeout:g} s")
        raise AssertionError("follow ends with the task")

    def jobs(self, task_id: str) -> Sequence[Job]:
        """The task's jobs in index order."""
        return [Job.model_validate(job) for job in self._transport.pages(f"/v1/tasks/{task_id}/jobs")]

    def metrics(
        self,
        task_id: str,
        jobs: Sequence[int] = (),
        series: Series | None = None,
        from_step: int = 0,
        to_step: int | None = None,
    ) -> Sequence[Curve]:
        """Loss curves of the jobs with these indexes (all if empty), between two steps, both inclusive."""
        query = {"job": list(jobs), "series": series, "from_step": from_step, "to_step": to_step}
        answer = self._transport.get(f"/v1/tasks/{task_id}/metrics", query).json()
        return [Curve.model_validate(curve) for curve in answer["data"]]


class Adapters:
    """Committed adapters."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, adapter_id: str) -> Adapter:
        return Adapter.model_validate(self._transport.get(f"/v1/adapters/{adapter_id}").json())

    def list(self) -> Iterator[Adapter]:
        return map(Adapter.model_validate, self._transport.pages("/v1/adapters"))

    def delete(self, adapter_id: str) -> None:
        """Delete the adapter for good. Raises ApiError (`adapter_in_use`) until its task, and tasks that start from it, have
        ended."""
        self._transport.delete(f"/v1/adapters/{adapter_id}")

    def download(self, adapter_id: str, folder: str | Path) -> Path:
        """The PEFT folder, each file checked against its sha256; `folder` appears complete or not at all."""
        return download(self._transport, self.get(adapter_id), Path(folder))


class Models:
    """Base models that tasks may name."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> Iterator[Model]:
        return map(Model.model_validate, self._transport.pages("/v1/models"))

    def get(self, name: str) -> Model:
        return Model.model_validate(self._transport.get(f"/v1/models/{name}").json())


class Admin:
    """Calls that need the admin scope."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def register_model(self, name: str, source: str | Path) -> Model:
        """Allow a base model: `source` is a folder that every node has. Its current revision is pinned."""
        return Model.model_validate(self._transport.make("/v1/admin/models", json={"name": name, "source": str(source)}).json())

    def nodes(self) -> Iterator[Node]:
        return map(Node.model_validate, self._transport.pages("/v1/admin/nodes"))


class Client:
    """One service and one key. Use it as a context manager, or call `close`."""

    def __init__(self, api_url: str | None = None, key: str | None = None, admin_key: str | None = None) -> None:
        found = credentials.find(api_url, key, admin_key)
        self.api_url = found.api_url
        self._transport = Transport(found.api_url, found.key)
        self._admin = Transport(found.api_url, found.admin_key) if found.admin_key is not None else None
        self.files = Files(self._transport)
        self.tasks = Tasks(self._transport)
        self.adapters = Adapters(self._transport)
        self.models = Models(self._transport)

    def schedule(self) -> Schedule:
        """What runs where and until when, what waits and why; other tenants' tasks are anonymous."""
        whole: dict[str, Any] | None = None
        for page in self._transport.whole_pages("/v1/schedule"):
            if whole is None:
                whole = page
            else:
                whole["nodes"] += page["nodes"]
                whole["waiting"] += page["waiting"]
        return Schedule.model_validate(whole)

    @property
    def admin(self) -> Admin:
        """Calls under the admin key. Raises NoCredentials where no admin key is known."""
        if self._admin is None:
            raise NoCredentials("this needs an admin key: set MOTET_ADMIN_KEY, or use the machine where `motet up` runs")
        return Admin(self._admin)

    def ready(self) -> None:
        """Return if the service can answer requests. Raises Unreachable, or ApiError with what it lacks."""
        self._transport.get("/readyz")

    def close(self) -> None:
        self._transport.close()
        if self._admin is not None:
            self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
