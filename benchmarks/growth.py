"""Rows written per start under a long queue, and table growth over time: `python -m benchmarks.growth`.

The API, the queue worker, the reconciler, Postgres and Valkey are real processes; the node is a fake one (fake_node.py) that
speaks the real fleet API. `--queue` tasks wait. At a fixed rate a running task ends, the next one starts, another is submitted
and an ended one is deleted. Rows written are Postgres' own counts (pg_stat_user_tables), over a task's whole life. The garbage
collector runs each minute with retentions of a minute, so tables that hold only history must not grow.

The gate: a start writes at most BOUND rows on average, usage is the same before and after the last sweep and is what the node
reported, and no swept table has grown.
"""

import argparse
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import mean
from typing import Any

import sqlalchemy as sa

from benchmarks.fake_node import TOKENS, FakeNode
from benchmarks.result_file import write_result
from service.background.garbage_collection import sweep
from service.background.retention import Retention, forget_surplus_plans
from service.database.engine import Database
from service.storage.local_storage import LocalStorage
from service.storage.upload_grants import UploadGrants
from tests.walk.running_stack import RunningStack, running_stack

BOUND = 100.0  # rows inserted, updated and deleted per start, from submission to deletion and sweep
_GROWN = 1.25  # a swept table has grown if its rows exceed this multiple of what is allowed,
_FEW = 100  # and exceed it by more than this
_SETTLE_SECONDS = 11.0  # an idle backend reports its statistics after 10,
_SAME_READS, _APART_SECONDS = 4, 0.5  # and where the machine stalled, soon after it goes on
_SETTLED = ("tasks", "jobs", "task_events")  # tables that only starts and news write
_FOREVER = ("tasks", "jobs", "task_usage")  # tables that keep a row for every task ever
_KEEP = timedelta(minutes=1)
_PLANS_KEPT = 100
_ROWS = [{"prompt": f"{at} + 1?", "completion": str(at + 1)} for at in range(20)]
_SPEC = {
    "search_space": {"learning_rate": [1e-3], "rank": [4], "batch_size": [4]},
    "training": {"epochs": 1, "max_seq_len": 64},
    "early_exit": {"policy": "none"},
}
_WRITTEN = "SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables"
_INSERTED = "SELECT relname, n_tup_ins FROM pg_stat_user_tables"
_TABLES = "SELECT relname, pg_total_relation_size(relid) FROM pg_stat_user_tables"


@dataclass(frozen=True)
class Sample:
    """The tables after a sweep: rows, rows inserted so far, and bytes including indexes and TOAST."""

    starts: int
    rows: dict[str, int]
    inserted: dict[str, int]
    bytes: dict[str, int]


@dataclass(frozen=True)
class Run:
    """`written`: rows by table, within `counted_seconds`. `notified`: new versions of tasks that waited all that time. `usage`:
    of the month, before and after the last sweep."""

    starts: int
    queue: int
    seconds: float
    written: dict[str, int]
    notified: int
    usage: tuple[dict[str, Any], dict[str, Any]]
    samples: list[Sample] = field(default_factory=list)
    counted_seconds: float = 0.0

    @property
    def per_start(self) -> dict[str, float]:
        return {table: rows / self.starts for table, rows in sorted(self.written.items()) if rows}


class Growing:
    """A service with a full queue and a full node, whose tasks end on command."""

    def __init__(self, motet: RunningStack, queue: int, slots: int, rate: float, keep: timedelta) -> None:
        self._motet, self._queue, self._slots, self._rate = motet, queue, slots, rate
        self._keep = Retention(*[keep] * 6)
        environment = motet.environment("api")
        self._db = Database(motet.database_url, pool_size=2)
        grants = UploadGrants(environment["MOTET_SECRET_KEY"])
        self._storage = LocalStorage(Path(environment["MOTET_STORAGE_DIR"]), grants)
        with self._db.begin() as session:
            session.execute(sa.text("UPDATE tenants SET queued_tasks_quota = NULL"))
        token = motet.join_token("fake")
        self._node = FakeNode(
            motet.url, motet.redis_url, token, "fake", slots, slots / rate, lambda _: None, held=True
        )  # each task takes as long as it reports
        self._file = motet.upload(_ROWS)
        for _ in range(slots + queue):
            self._submit()
        self._full()
        _until(lambda: not self._one("SELECT count(*) FROM queue_status WHERE untold > 0"))

    def close(self) -> None:
        self._node.close()
        self._db.engine.dispose()

    def measure(self, starts: int, every: int) -> Run:
        """Start this many tasks, one after another at the rate, with a sweep after each `every` starts."""
        forget_surplus_plans(self._db, _PLANS_KEPT)  # of the submissions, however many it took
        before, waited, began = self._settled(), self._versions(), time.monotonic()
        samples: list[Sample] = []
        for done in range(1, starts + 1):
            self._node.finish_next()
            self._submit()
            self._delete_ended()
            if done % every == 0:
                self._sweep()
                samples.append(self._sample(done))
            time.sleep(max(0.0, began + done / self._rate - time.monotonic()))
        seconds = time.monotonic() - began
        self._full()
        usage = self._usage()
        self._sweep()
        after, wait, counted = self._settled(), self._versions(), time.monotonic() - began
        placed = after["placements"], self._one("SELECT count(*) FROM tasks WHERE started_at IS NOT NULL")
        assert placed[1] == starts + self._slots, f"{placed[1]} tasks were started, {starts + self._slots} should have been"
        notified = sum(wait[id] - waited[id] for id in wait.keys() & waited.keys())
        written = {table: rows - before.get(table, 0) for table, rows in after.items()}
        return Run(starts, self._queue, seconds, written, notified, (usage, self._usage()), samples, counted)

    def _submit(self) -> None:
        self._motet.submit(dataset={"file_id": self._file}, **_SPEC)

    def _delete_ended(self) -> None:
        for id in self._column("SELECT id FROM tasks WHERE status = 'succeeded' AND deleted_at IS NULL"):
            assert self._motet.http.delete(f"/v1/tasks/{id}").status_code == 204

    def _full(self) -> None:
        """Wait until all devices run and every waiting task has a reason."""
        waits = "SELECT count(*) FROM tasks WHERE status = 'queued' AND waiting->>'code' = 'waiting_for_capacity'"
        runs = "SELECT count(*) FROM tasks WHERE status = 'running'"
        _until(lambda: (self._one(runs), self._one(waits)) == (self._slots, self._queue))

    def _settled(self) -> dict[str, int]:
        """Rows written so far, once nobody has been notified lately and all backends have reported what they wrote."""
        known: dict[str, int] = {}
        while (now := self._versions()) != known:
            known = now
            time.sleep(_SETTLE_SECONDS)
        seen = [self._read(_WRITTEN)]
        while len(seen) < _SAME_READS or len({tuple(rows[name] for name in _SETTLED) for rows in seen[-_SAME_READS:]}) > 1:
            time.sleep(_APART_SECONDS)  # polled: reported statistics are no event
            seen.append(self._read(_WRITTEN))
        return seen[-1]

    def _sweep(self) -> None:
        forget_surplus_plans(self._db, _PLANS_KEPT)
        sweep(self._db, self._storage, self._keep)

    def _sample(self, starts: int) -> Sample:
        size = self._read(_TABLES)
        rows = {table: self._one(f"SELECT count(*) FROM {table}") for table in size}
        return Sample(starts, rows, self._read(_INSERTED), size)

    def _usage(self) -> dict[str, Any]:
        total: dict[str, Any] = self._motet.http.get("/v1/usage").json()["total"]
        return total

    def _versions(self) -> dict[str, int]:
        return self._read("SELECT id, version FROM tasks WHERE status = 'queued'")

    def _read(self, statement: str) -> dict[str, int]:
        with self._db.begin() as session:
            return {name: int(value) for name, value in session.execute(sa.text(statement))}

    def _column(self, statement: str) -> list[str]:
        with self._db.begin() as session:
            return list(session.scalars(sa.text(statement)))

    def _one(self, statement: str) -> int:
        with self._db.begin() as session:
            return int(session.execute(sa.text(statement)).scalar_one())


def _until(holds: Callable[[], bool], seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.2)  # polled: the rows are what is measured, and no event covers them all


def measure(queue: int, starts: int, rate: float, slots: int, every: int, keep: timedelta = _KEEP) -> Run:
    """`keep`: the retentions of what is swept."""
    state = Path(tempfile.mkdtemp(prefix="motet-growth-"))
    try:
        with running_stack(state, workers=0) as motet:
            growing = Growing(motet, queue, slots, rate, keep)
            try:
                return growing.measure(starts, every)
            finally:
                growing.close()
    finally:
        shutil.rmtree(state, ignore_errors=True)


def grown(samples: list[Sample]) -> dict[str, float]:
    """Swept tables that have grown: current rows as a multiple of the allowed rows. Allowed is the larger of the initial rows
    (the mean of three sweeps after the first two, when nothing was old enough) and the rows written in the last two minutes:
    how many owners get notices depends on how well the planner knows the rate."""
    found = {}
    for table in samples[-1].rows if len(samples) >= 6 else ():
        last, before = samples[-1], mean(one.rows[table] for one in samples[2:5])
        allowed = max(before, float(last.inserted[table] - samples[-3].inserted[table]))
        if table not in _FOREVER and last.rows[table] > allowed + _FEW:
            found[table] = last.rows[table] / max(1.0, allowed)
    return found


def gate(run: Run) -> dict[str, Any]:
    """{tolerance, worst_error, compared, passed}: the error is the number of rows written per start."""
    rows, more = sum(run.per_start.values()), grown(run.samples)
    before, after = run.usage
    same = before == after and before["trained_tokens"] == TOKENS * run.starts
    return {
        "tolerance": BOUND,
        "worst_error": rows,
        "compared": run.starts,
        "usage_same": same,
        "grown": more,
        "passed": rows <= BOUND and same and all(times <= _GROWN for times in more.values()),
    }


def figures(run: Run) -> dict[str, float]:
    found = {
        "queue": float(run.queue),
        "starts": float(run.starts),
        "starts_per_second": run.starts / run.seconds,
        "rows_per_start": sum(run.per_start.values()),
        "notified_per_start": run.notified / run.starts,
    }
    if run.samples:
        swept = [sum(rows for table, rows in one.rows.items() if table not in _FOREVER) for one in run.samples]
        size = [sum(one.bytes.values()) for one in run.samples]
        middle = len(run.samples) // 2
        found |= {"swept_rows_middle": float(swept[middle]), "swept_rows_end": float(swept[-1])}
        found |= {"bytes_middle": float(size[middle]), "bytes_end": float(size[-1])}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queue", type=int, default=1000)
    parser.add_argument("--starts", type=int, default=600)
    parser.add_argument("--rate", type=float, default=1.0, help="starts a second (%(default)s)")
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--every", type=int, default=60, help="starts between two sweeps (%(default)s)")
    options = parser.parse_args()
    run = measure(options.queue, options.starts, options.rate, options.slots, options.every)
    found = figures(run)
    for name, value in itertools.chain(found.items(), run.per_start.items()):
        print(f"{name:32} {value:14.2f}")
    rows: list[dict[str, Any]] = [{"table": table, "per_start": value} for table, value in run.per_start.items()]
    rows += [{"starts": one.starts, "rows": one.rows, "bytes": one.bytes} for one in run.samples]
    print(write_result("growth", gate(run), found, rows))


if __name__ == "__main__":
    main()
