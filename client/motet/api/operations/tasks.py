"""Calls about tasks: searches, their jobs, curves and events."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from contract.messages.report_messages import Series
from contract.states import TaskStatus
from contract.task_spec import TaskSpec
from motet.api.errors import NotMotet, TaskNotDone, Unreachable
from motet.api.received_answers import contents, data_of, resource, validated
from motet.api.resources import Curve, Estimate, Event, Job, PlanChange, Task, TaskMirror, TextEvaluation
from motet.api.steps import (
    Emit,
    Listing,
    Operation,
    Sleep,
    ask,
    at,
    awaited,
    change,
    chunk,
    entries,
    gathered,
    get,
    make,
    one,
    opened,
    remove,
)

_LONGEST_WAIT = 50.0  # seconds one request may wait for a change
_IDLE = 2.0  # seconds without an event after which a stream has sent all that happened so far
_STREAM_SILENCE = 60.0  # the service sends a comment every 15 s
_RECONNECT = 1.0

Spec = TaskSpec | Mapping[str, Any]


def create(spec: Spec) -> Operation[Task]:
    """Submit a task. A mapping is checked by the service, whose ApiError names each wrong field."""
    return one(Task, make("/v1/tasks", json=_body(spec)))


def estimate(spec: Spec) -> Operation[Estimate]:
    """What the task would take, and when it would start and end, if it were posted now. Nothing is stored."""
    return one(Estimate, ask("/v1/tasks/estimate", _body(spec)))


def task(task_id: str) -> Operation[Task]:
    """The task as it is now."""
    return one(Task, get(at("/v1/tasks/{}", task_id)))


def tasks(status: TaskStatus | str | None = None, labels: Mapping[str, str] | None = None) -> Listing[Task]:
    """The tenant's tasks, newest first; only those of a status, or with all of these labels."""
    wanted = [f"{key}={value}" for key, value in (labels or {}).items()]
    return entries(Task, "/v1/tasks", {"status": status, "label": wanted or None})


def cancel(task_id: str) -> Operation[Task]:
    """Cancel the task, which is final at once; committed adapters stay downloadable."""
    return one(Task, change("POST", at("/v1/tasks/{}/cancel", task_id)))


def pause(task_id: str) -> Operation[Task]:
    """Take the task out of the queue, or off its node once its jobs are checkpointed; no training is lost."""
    return one(Task, change("POST", at("/v1/tasks/{}/pause", task_id)))


def resume(task_id: str) -> Operation[Task]:
    """Put a paused task back into the queue."""
    return one(Task, change("POST", at("/v1/tasks/{}/resume", task_id)))


def delete_task(task_id: str) -> Operation[None]:
    """Delete an ended task for good, with its jobs, curves and adapters. Raises ApiError (`task_open`) until it has ended."""
    yield from remove(at("/v1/tasks/{}", task_id))


def plan_history(task_id: str) -> Listing[PlanChange]:
    """The plans made for the task, newest first."""
    return entries(PlanChange, at("/v1/tasks/{}/plan-history", task_id))


def jobs(task_id: str) -> Operation[Sequence[Job]]:
    """The task's jobs in index order."""
    return (yield from gathered(entries(Job, at("/v1/tasks/{}/jobs", task_id))))


def evaluations(task_id: str, milestones: bool = False) -> Operation[Sequence[TextEvaluation]]:
    """How the texts of the base and of the kept adapters were scored, the base's first. milestones: those that jobs generated
    in the midst of their training instead, job by job."""
    path = at("/v1/tasks/{}/evaluations", task_id)
    return (yield from gathered(entries(TextEvaluation, path, {"at": "milestones"} if milestones else None)))


def metrics(
    task_id: str,
    jobs: Sequence[int] = (),
    series: Series | None = None,
    from_step: int = 0,
    to_step: int | None = None,
    resolution: int | None = None,
) -> Operation[Sequence[Curve]]:
    """Loss curves of the jobs with these indexes (all if empty), between two steps, both inclusive. `resolution`: about how
    many points a curve may have, each the mean of its bucket."""
    query = {"job": list(jobs) or None, "series": series, "from_step": from_step, "to_step": to_step, "resolution": resolution}
    path = at("/v1/tasks/{}/metrics", task_id)
    answer = contents((yield from get(path, query)))
    return [validated(Curve, curve, path) for curve in answer.get("data", ())]


def follow(task_id: str, every: float = 30.0) -> Listing[Task]:
    """The task now, then at each change and at least every `every` seconds, until it has ended.

    Survives a restart of the API.
    """
    return _followed(task_id, every, math.inf)


def _followed(task_id: str, every: float, until: float) -> Listing[Task]:
    """As `follow`; no request waits longer than until `until`, of time.monotonic."""
    etag: str | None = None
    found: Task | None = None
    while found is None or not found.ended:
        wait = max(0.0, min(every, _LONGEST_WAIT, until - time.monotonic()))
        query, headers = ({"wait": wait}, {"If-None-Match": etag}) if etag else (None, None)
        answer = yield from get(at("/v1/tasks/{}", task_id), query, headers, wait=wait)
        if answer.status_code != 304 or found is None:
            found, etag = resource(Task, answer), answer.headers.get("etag")
        yield Emit(found)
        if etag is None and not found.ended:  # something on the way took it out, so nothing waits there
            yield Sleep(max(0.0, min(_RECONNECT, until - time.monotonic())))


def wait(task_id: str, timeout: float | None = None) -> Operation[Task]:
    """The task once it has ended, in any status. Raises TaskNotDone after `timeout` seconds."""
    following = _followed(task_id, _LONGEST_WAIT, math.inf if timeout is None else time.monotonic() + timeout)
    task, ended = yield from awaited(following, lambda seen: seen.ended, timeout)
    if not ended:
        raise TaskNotDone(f"{task_id} is still {task.status} after {timeout:g} s")
    return task


def mirrors(task_id: str) -> Operation[Sequence[TaskMirror]]:
    """What of the task its tracking servers were sent, in the order of the spec's `integrations`."""
    return (yield from gathered(entries(TaskMirror, at("/v1/tasks/{}/mirrors", task_id))))


def events(task_id: str, after: int = 0, follow: bool = True) -> Listing[Event]:
    """What happened to the task, from behind event number `after`; goes on until the task has ended, through restarts of the
    API. Without `follow`, only what has happened by now."""
    silence = _STREAM_SILENCE if follow else _IDLE
    while True:
        reads = False
        try:
            answer = yield from opened(at("/v1/tasks/{}/events", task_id), {"Last-Event-ID": str(after)}, silence)
            if answer.status_code == 204:  # it has ended, and all its events were read
                return
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                raise NotMotet(answer.status_code, f"{answer.request.url} answered no stream of events")
            reads, held = True, b""
            while received := (yield from chunk()):
                *frames, held = (held + received).split(b"\n\n")
                for data in filter(None, map(data_of, frames)):
                    event = Event.model_validate(json.loads(data))
                    after = event.number
                    yield Emit(event)
        except Unreachable as error:
            if not follow and reads and isinstance(error.__cause__, httpx.ReadTimeout):  # it has sent all that there is
                return
            yield from get(at("/v1/tasks/{}", task_id))  # raises where it stays away
        else:
            if not follow:
                return
        yield Sleep(_RECONNECT)


def _body(spec: Spec) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude_unset=True) if isinstance(spec, TaskSpec) else dict(spec)
