"""Several tasks beside each other: best against base, the best jobs' curves on the same axes, and how the specs differ."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Query, Request, Response
from sqlalchemy import select

from contract.wording.comparable_losses import files_in, loss_differences
from service.authentication import Db
from service.database.engine import among_ids
from service.files.models import File
from service.http.problems import BadRequest
from service.tasks import actions
from service.tasks.job_resource import jobs_of_task
from service.tasks.models import Task
from service.tasks.resource import TaskResource
from service.tasks.resource import render as resources_of
from service.tenants.tenant_scope import find, scoped
from service.usage.usage_queries import gpu_seconds_of
from service.web.page_route import pages
from service.web.rendering import render
from service.web.session.viewer import Looking
from service.web.views.job_rows import JobRow, job_table
from service.web.views.spec_differences import NamedFile, contents_of, differences

router = pages()

_MOST, _OFFERED = 8, 50
_NAMED = select(File.id, File.name, File.sha256).where(among_ids(File.id))  # deleted ones too


@dataclass(frozen=True)
class Compared:
    task: TaskResource
    best: JobRow | None
    gpu_seconds: float
    colour: int

    @property
    def device_type(self) -> str | None:
        """What it ran on last."""
        return self.task.placement.device_type if self.task.placement is not None else None

    @property
    def line(self) -> dict[str, object] | None:
        """What the plot draws of it."""
        if self.best is None:
            return None
        name = f"{self.task.name or self.task.id}, job {self.best.job.index}"
        return {"task": self.task.id, "job": self.best.job.index, "name": name, "colour": self.colour}


@router.get("/compare")
def compare(viewer: Looking, db: Db, request: Request, task: Annotated[list[str], Query()] = []) -> Response:  # noqa: B006
    ids = list(dict.fromkeys(task))
    if len(ids) > _MOST:
        raise BadRequest(f"{len(ids)} tasks were chosen; {_MOST} can be compared at once.")
    reader = viewer.principal
    with db.begin() as session:
        tasks = resources_of(session, [find(session, Task, id, reader, "task") for id in ids])
        found = [
            Compared(
                one,
                job_table(jobs_of_task(session, reader, one.id), "best", one.winner.job_id if one.winner else None).best,
                gpu_seconds_of(session, reader, one.id),
                at,
            )
            for at, one in enumerate(tasks)
        ]
        newest = actions.select_tasks(reader, archived=False).order_by(Task.created_at.desc()).limit(_OFFERED)
        offered = [one for one in session.scalars(newest) if one.id not in ids]
        named = {"ids": [id for one in tasks for id in files_in(one.spec)]}
        files = {id: NamedFile(name, sha256) for id, name, sha256 in session.execute(scoped(_NAMED, File, reader), named)}
    lines = [one.line for one in found if one.line is not None]
    specs = [one.task.spec for one in found]
    counts = {one.task.rows.validation for one in found} - {None}
    return render(
        request,
        "compare.html",
        compared=found,
        lines=lines,
        differences=differences(specs, files),
        apart=loss_differences(specs, contents_of(files)) + (["the number of validation rows"] if len(counts) > 1 else []),
        offered=offered,
        most=_MOST,
    )
