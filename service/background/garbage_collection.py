"""Garbage collection: deletes objects that no row refers to, and rows past their retention (retention.py).

It also checks the usage counters against the usage rows. It runs in a thread of the queue worker: where there are millions of
objects it takes long, and no plan waits for it.
"""

import itertools
import logging
from collections.abc import Iterable, Iterator

from sqlalchemy import or_, select, type_coerce, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from contract.states import TASK_TERMINAL
from service.adapters.models import Adapter
from service.background.retention import Retention, forget
from service.background.separate_steps import alone
from service.database.engine import Database, clock
from service.dependencies import Dependencies
from service.files.models import File
from service.fleet.base_models.model_catalog import stored_objects
from service.hub_pushes.models import OPEN as PUSH_OPEN
from service.hub_pushes.models import HubPush
from service.merges.models import OPEN, MergedModel
from service.messaging.woken_thread import WokenThread
from service.metrics.ended_totals import fold
from service.storage.object_store import Storage
from service.tasks.models import Job, Task, reads_file
from service.usage.daily_rollup import roll_up
from service.usage.usage_ledger import drift, month_at

log = logging.getLogger(__name__)

KEPT_SECONDS = 24 * 3600.0  # the longest time between an object's upload and the report that refers to it
_DEFAULT = Retention()
_BATCH, _ROWS = 50_000, 1000  # objects that are looked for at a time, rows read at a time


class Sweeper(WokenThread):
    name, put_off = "sweeper", "the rest is swept later"

    def __init__(self, dependencies: Dependencies) -> None:
        super().__init__()
        self._db, self._storage = dependencies.db, dependencies.storage
        self._keep = Retention.of(dependencies.settings)

    def run_due(self) -> None:
        sweep(self._db, self._storage, self._keep)


def sweep(db: Database, storage: Storage, keep: Retention = _DEFAULT) -> int:
    """Delete unreferenced objects and old rows; returns the number of objects. A step that fails is logged and made again by
    the next sweep; the others continue.

    Safe beside uploads: a grant or put resets the object's age. Memory is bounded, however many objects there are.
    """
    for step in (_note_expired, fold, roll_up):  # placements are counted before they are deleted
        with alone(step.__name__):
            step(db)
    forgotten = {table: rows for table, rows in forget(db, keep).items() if rows}
    if forgotten:
        log.info("removed rows that were kept long enough: %s", forgotten)
    with alone("the check of the usage counters"):
        _compare_counters(db)
    removed = 0
    with alone("the removal of objects that nothing refers to"):
        removed = _remove_objects(db, storage)
    if removed:
        log.info("removed %d objects that nothing referred to", removed)
    return removed


def _note_expired(db: Database) -> None:
    """Mark files and merged models whose time is over as deleted. Those that someone has locked are left to the next sweep: who
    locks several would else wait for this transaction, and it for them."""
    for row in (File, MergedModel):
        with db.begin() as session:
            over = select(row.id).where(row.deleted_at.is_(None), row.expires_at <= clock(session))
            expired = update(row).where(row.id.in_(over.with_for_update(skip_locked=True, key_share=True)))
            session.execute(expired.values(deleted_at=row.expires_at))


def _remove_objects(db: Database, storage: Storage) -> int:
    removed = 0
    listed = storage.keys()
    for old in _batches(stored.sha256 for stored in listed if stored.age > KEPT_SECONDS):
        with db.begin() as session:  # after the listing: what was referred to meanwhile is kept
            orphans = _unreferenced(session, old)
        removed += sum(storage.delete(sha256, older_than=KEPT_SECONDS) for sha256 in sorted(orphans))
    return removed + storage.sweep_incoming()


def _batches(keys: Iterable[str]) -> Iterator[set[str]]:
    keys = iter(keys)
    while batch := set(itertools.islice(keys, _BATCH)):
        yield batch


def _compare_counters(db: Database) -> None:
    """Check this month's counters. Both sides are read in one snapshot, since reports continue meanwhile."""
    with db.begin() as session:
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        for tenant in drift(session, month_at(clock(session))):
            log.error("the counter of the tokens that tenant %s trained this month is not the sum over its tasks", tenant)


def _unreferenced(session: Session, found: set[str]) -> set[str]:
    """Those of `found` that no file, checkpoint, adapter, merged model, open push or base refers to."""
    return found.difference(references(session))


def references(session: Session) -> Iterator[str]:
    """Every object that a row needs, some of them more than once. A deleted file counts while a task needs it."""
    needed = select(Task.id).where(Task.status.not_in(list(TASK_TERMINAL)), reads_file(File.id))
    files = select(File.sha256).where(or_(File.deleted_at.is_(None), needed.exists()))
    checkpoints = select(Job.checkpoint["sha256"].astext).where(Job.checkpoint.is_not(None))
    for one in (files, checkpoints, stored_objects()):
        yield from session.scalars(one.execution_options(yield_per=_ROWS))
    # as they are stored: while one cannot be read, whose objects are not known, none are deleted
    adapters = select(Adapter.manifest["files"]).where(Adapter.deleted_at.is_(None))
    merged = select(type_coerce(MergedModel.files, JSONB)).where(MergedModel.deleted_at.is_(None))
    sources = select(type_coerce(MergedModel.adapter_files, JSONB)).where(
        MergedModel.deleted_at.is_(None), MergedModel.status.in_(OPEN)
    )
    pushed = select(type_coerce(HubPush.files, JSONB)).where(HubPush.status == PUSH_OPEN)
    for of_folders in (adapters, merged, sources, pushed):
        for listed in session.scalars(of_folders.execution_options(yield_per=_ROWS)):
            yield from (file["sha256"] for file in listed)
