"""Applies a placement's reports: each once, in order, in full or not at all. Knows no HTTP."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.messages.report_messages import (
    Checkpointed,
    Detached,
    JobCompleted,
    JobExited,
    JobFailed,
    Report,
    ReportAck,
    ReportEvent,
    Throughput,
)
from contract.states import TASK_TERMINAL, RequeueReason
from service.database.engine import clock
from service.dependencies import Dependencies
from service.fleet.errors import FenceStale, ReportRefused, SeqGap
from service.fleet.learning_protocol import ProfileUpdates
from service.fleet.models import NODE_LOCK, Node, Placement
from service.fleet.node_health.quarantine import note_progress
from service.fleet.nodes import check_protocol
from service.fleet.worker_authentication import check_placement, token_refused
from service.http.problems import FieldError
from service.messaging.plan_requests import request_plan
from service.settings import Settings
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.lifecycle.placements import FINISHED, end_placement, lock_placement, release_placement
from service.tasks.lifecycle.report_reducer import EventRefused, ReportReducer, held_sizes, named_objects
from service.tasks.lifecycle.task_trace import phases_ended, pulled
from service.tasks.models import Task
from service.usage.usage_ledger import book

BROKEN_AT = 1.1  # times a bound of slowdown: what is measured varies
_ENDS = (JobCompleted, JobExited, JobFailed)
_PROVES_TRAINING = (Checkpointed, JobCompleted, JobExited)  # events that prove that the node trains


def accept(
    dependencies: Dependencies, profile_updates: ProfileUpdates, placement_id: str, bearer: str | None, said: Report
) -> ReportAck:
    """Apply a report in one transaction. Raises FenceStale, SeqGap or ReportRefused, and has then changed nothing.

    A repeated report gets the same answer as before. Storage is asked between two transactions, in which the report must be
    due: a bucket that hangs would else hold the task's lock.
    """
    check_protocol(said.protocol, f"the executor of placement {placement_id}")
    held: dict[str, int] = {}
    if named := named_objects(said.events):
        with dependencies.db.begin() as session:
            _, placement = _due(session, dependencies.settings, placement_id, bearer, said)
            if said.seq <= placement.last_seq:
                return ReportAck(seq=placement.last_seq)
        held = held_sizes(dependencies.storage, named)
    with dependencies.db.begin() as session:
        task, placement = _due(session, dependencies.settings, placement_id, bearer, said)
        if said.seq <= placement.last_seq:
            return ReportAck(seq=placement.last_seq)
        reducer = ReportReducer(session, held, task)
        try:
            reducer.apply(said.events)
        except EventRefused as error:
            raise ReportRefused([FieldError(field="events", code="event_refused", message=str(error))]) from None
        placement.last_seq = said.seq
        if placement.acknowledged_at is None:  # its executor was heard before its node
            placement.acknowledged_at = now = clock(session)
            pulled(session, placement.id, now)
        bump_version_and_notify(session, task)
        session.flush()
        _update_from_events(session, dependencies, profile_updates, task, placement, said.events)
        if said.spans:
            phases_ended(session, task, placement, session.get_one(Node, placement.node_id).name, said.spans)
        return ReportAck(seq=said.seq)


def _due(session: Session, settings: Settings, placement_id: str, bearer: str | None, said: Report) -> tuple[Task, Placement]:
    """The report's task and placement, locked, if it is the next one or was applied before. Raises FenceStale or SeqGap."""
    task, placement = own_placement(session, settings, placement_id, bearer, finished=True)
    if said.fence != placement.fence:
        raise stale(placement)
    if said.seq <= placement.last_seq:
        return task, placement
    if placement.ended_at is not None and not _may_come_late(said):
        raise stale(placement)
    if said.seq > placement.last_seq + 1:
        expected = placement.last_seq + 1
        raise SeqGap(f"Report {said.seq} came, {expected} is expected.", expected_seq=expected)
    return task, placement


def own_placement(
    session: Session, settings: Settings, placement_id: str, bearer: str | None, finished: bool = False
) -> tuple[Task, Placement]:
    """The token's placement and its task, both locked. Raises FenceStale once the placement has ended, its task has left it, or
    its lease is over; with `finished`, a placement whose task ended there is accepted until its lease is over."""
    fence = check_placement(settings, placement_id, bearer)
    found = lock_placement(session, placement_id)
    if found is None or found[1].fence != fence:
        raise token_refused(placement_id)
    task, placement = found
    over = placement.ended_at is not None and not (finished and placement.end_reason == FINISHED)
    if over or task.fence != placement.fence:
        raise stale(placement)
    if placement.lease_until < clock(session):
        raise stale(placement, "its lease is over")
    return task, placement


def stale(placement: Placement, why: str = "its fence is old") -> FenceStale:
    return FenceStale(f"Placement {placement.id} is over ({placement.end_reason or why}); nothing was changed.")


def _may_come_late(said: Report) -> bool:
    """Whether an executor may send this after its last job has ended: what it trained, and that it has reported everything."""
    return all(isinstance(event, Throughput | Detached) for event in said.events)


def _update_from_events(
    session: Session,
    dependencies: Dependencies,
    profile_updates: ProfileUpdates,
    task: Task,
    placement: Placement,
    events: list[ReportEvent],
) -> None:
    """Update the placement's sums, the learned speeds and lifetimes, and the plan requests from a report's events."""
    done = [event for event in events if isinstance(event, Throughput)]
    for event in done:
        _add_throughput(session, dependencies, placement, event)
    measured = _learn(session, profile_updates, task, placement, done) if done else []
    if any(isinstance(event, _PROVES_TRAINING) for event in events):
        note_progress(session, dependencies, task, placement)
    _book(session, task, placement, done)
    # after an end, or at the 1st, 2nd, 4th, 8th … measurement
    end_may_have_moved = any(isinstance(event, _ENDS) for event in events) or any(
        number & (number - 1) == 0 for number in measured
    )
    if task.status in TASK_TERMINAL:
        if placement.ended_at is None:
            end_placement(session, dependencies.wakeups, placement, FINISHED)
            request_plan(session, dependencies.queue, "task_ended")
            profile_updates.note_ended(session, task)
    elif placement.leaving is not None and any(isinstance(event, Detached) for event in events):
        release_placement(session, dependencies, task, placement, RequeueReason(placement.leaving))
    elif end_may_have_moved and profile_updates.end_moved(session, task, placement):
        request_plan(session, dependencies.queue, "end_moved")


def _book(session: Session, task: Task, placement: Placement, done: Sequence[Throughput]) -> None:
    if done:
        tokens, evaluated = sum(one.tokens for one in done), sum(one.evaluation_tokens for one in done)
        book(session, task, placement, tokens, evaluated, sum(one.own_seconds for one in done))


def _broken(placement: Placement) -> bool:
    """Whether sharing slows the placement beyond its bound."""
    slowdown, bound = placement.current_slowdown, placement.max_slowdown
    return slowdown is not None and bound is not None and slowdown > BROKEN_AT * bound


def _add_throughput(session: Session, dependencies: Dependencies, placement: Placement, done: Throughput) -> None:
    """Add to the placement's sums."""
    placement.steps += done.steps
    placement.tokens += done.tokens
    placement.train_seconds += done.seconds
    placement.micro_batches += done.micro_batches
    placement.forwards += done.forwards
    placement.evaluation_tokens += done.evaluation_tokens
    placement.evaluation_seconds += done.evaluation_seconds
    placement.gpu_seconds += done.own_seconds
    broken = _broken(placement)
    if done.slowdown is not None or done.steps:
        placement.slowdown, placement.slowdown_beside = done.slowdown, list(done.beside) or None
    session.flush()
    session.expire(placement, ["current_slowdown"])
    if done.slowdown is not None:
        placement.slowdown = placement.current_slowdown  # null where it was on its way when one of the others left
        if _broken(placement) and not broken:
            request_plan(session, dependencies.queue, "bound_broken")


def _learn(
    session: Session, profile_updates: ProfileUpdates, task: Task, placement: Placement, done: Sequence[Throughput]
) -> list[int]:
    """Add to the learned speeds. Returns the numbers of measurements."""
    node = session.scalars(select(Node).where(Node.id == placement.node_id).with_for_update(**NODE_LOCK)).one()
    return profile_updates.note_steps(session, task, node, len(placement.device_indexes), done)
