"""The list of tasks, and what is done to several of them at once."""

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Depends, Query, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from contract.states import TASK_TERMINAL, TaskStatus
from service.app_state import QueueDep, WakeupsDep
from service.audit.audit_trail import note_created
from service.authentication import Db, Writer
from service.http.pagination import page
from service.http.problems import BadRequest
from service.tasks import actions
from service.tasks.models import Task
from service.tenants.api_keys import Principal
from service.tenants.tenant_scope import find
from service.web.forms import Form
from service.web.page_route import pages
from service.web.rendering import render
from service.web.session.viewer import Looking
from service.web.views.task_rows import SORTS, ordered, task_rows

router = pages()

_PAGE = 50
_MOST_AT_ONCE = 200


@dataclass(frozen=True)
class Filters:
    """The list's filters as the query string holds them; what is not understood filters nothing."""

    status: list[TaskStatus]
    label: str
    base: str
    text: str
    archived: bool
    sort: str
    cursor: str | None

    @property
    def any(self) -> bool:
        return bool(self.status or self.label or self.base or self.text or self.archived)

    def link(self, **changes: str | list[str] | None) -> str:
        """The list's address with these changes; a change of filter begins at the first page."""
        said = {
            "status": [status.value for status in self.status],
            "label": self.label,
            "base": self.base,
            "text": self.text,
            "archived": "1" if self.archived else "",
            "sort": self.sort if self.sort != "newest" else "",
        } | changes
        return "/tasks?" + urlencode({name: value for name, value in said.items() if value}, doseq=True)


def _filters(
    status: Annotated[list[str], Query()] = [],  # noqa: B006  (FastAPI copies it)
    label: Annotated[str, Query(max_length=700)] = "",
    base: Annotated[str, Query(max_length=128)] = "",
    text: Annotated[str, Query(max_length=128)] = "",
    archived: str = "",
    sort: str = "newest",
    cursor: Annotated[str | None, Query(max_length=200)] = None,
) -> Filters:
    known = [TaskStatus(one) for one in dict.fromkeys(status) if one in list(TaskStatus)]
    label, base, text = (value.replace("\0", "").strip() for value in (label, base, text))
    return Filters(known, label, base, text, archived == "1", sort if sort in SORTS else "newest", cursor)


Filtered = Annotated[Filters, Depends(_filters)]


@router.get("/tasks")
def list_tasks(viewer: Looking, db: Db, filters: Filtered, request: Request) -> Response:
    reader = viewer.principal
    key, _, value = filters.label.partition("=")
    labels = {key: value} if key and value else {}
    chosen = actions.select_tasks(reader, filters.status, labels, filters.archived, filters.base or None, filters.text or None)
    with db.begin() as session:
        shown = page(session, chosen, Task, filters.cursor, _PAGE, lambda rows: task_rows(session, reader, rows))
        total = session.scalars(select(func.count()).select_from(chosen.subquery())).one()
        counts, bases = _counts(session, reader), _bases(session, reader)
    return render(
        request,
        "tasks.html",
        rows=ordered(shown.data, filters.sort),
        total=total,
        next_cursor=shown.next_cursor,
        filters=filters,
        counts=counts,
        bases=bases,
        statuses=list(TaskStatus),
        sorts=SORTS,
        done=_done(request),
    )


def _counts(session: Session, reader: Principal) -> dict[TaskStatus, int]:
    own = actions.select_tasks(reader, archived=False).subquery()
    rows = session.execute(select(own.c.status, func.count()).group_by(own.c.status))
    found = {TaskStatus(status): number for status, number in rows}
    return {status: found[status] for status in TaskStatus if status in found}


def _bases(session: Session, reader: Principal) -> list[str]:
    own = actions.select_tasks(reader).subquery()
    return sorted(session.scalars(select(own.c.base_model).distinct()))


def _done(request: Request) -> str | None:
    """What the form before this page did; only numbers come from the address."""
    for name, words in (("cancelled", "cancelled"), ("archived_now", "archived"), ("deleted", "deleted")):
        number = request.query_params.get(name, "")
        if number.isdecimal() and len(number) < 6:
            return f"{number} task{'s' if number != '1' else ''} {words}."
    return None


@router.post("/tasks/bulk")
def confirm_bulk(viewer: Looking, writer: Writer, db: Db, form: Form, request: Request) -> Response:
    """Names what will be done to which tasks, before it is; leads to the page that compares them."""
    ids, act = _chosen(form.all("task")), form.one("act")
    if act == "compare":  # not a GET form: its address would hold the CSRF token
        return RedirectResponse(f"/compare?{urlencode([('task', id) for id in ids])}", 303)
    with db.begin() as session:
        rows = task_rows(session, writer, [find(session, Task, id, writer, "task") for id in ids])
    fits = {row.task.id for row in rows if (row.task.status in TASK_TERMINAL) == (act != "cancel")}
    return render(
        request, "bulk.html", act=act, rows=[row for row in rows if row.task.id in fits], others=len(rows) - len(fits)
    )


@router.post("/tasks/bulk/{act}")
def do_bulk(act: str, writer: Writer, db: Db, queue: QueueDep, wakeups: WakeupsDep, form: Form) -> Response:
    ids, done = _chosen(form.all("task")), {"cancel": "cancelled", "archive": "archived_now"}
    if act not in done:
        raise BadRequest("Several tasks can be cancelled or archived at once.")
    with db.begin() as session:
        if act == "archive":
            changed = [actions.archive(session, writer, id, True) for id in ids]
        else:
            changed = actions.cancel_all(session, queue, wakeups, writer, ids)  # some may have ended since they were chosen
        for task in changed:
            note_created(session, task.id)
    return RedirectResponse(f"/tasks?{done[act]}={len(ids)}", 303)


def _chosen(ids: list[str]) -> list[str]:
    """In order, so that two of these never wait for each other's locks. Raises BadRequest."""
    if not ids:
        raise BadRequest("No task was chosen: tick the boxes before the tasks' names.")
    if len(ids) > _MOST_AT_ONCE:
        raise BadRequest(f"At most {_MOST_AT_ONCE} tasks at once.")
    return sorted(set(ids))
