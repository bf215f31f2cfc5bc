"""Prometheus metrics of queue, scheduler, fleet and executors, read from Postgres at each scrape by any API process."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from sqlalchemy import Select, func, literal, literal_column, select
from sqlalchemy.orm import Session

from contract.states import TaskStatus
from service.database.engine import clock
from service.fleet.answer_sessions import held_by_base
from service.fleet.models import Node, Placement
from service.fleet.node_health.quarantine import TROUBLES, trouble_of
from service.metrics.ended_totals import SUMS, by_status, placements_by_end
from service.metrics.models import NewestBackup
from service.mirrors.models import TaskMirror
from service.scheduler.models import Plan, PlanRequest
from service.settings import Settings
from service.tasks.models import Job, Task
from service.tasks.plan_status.wanted_gpus import WANTED_GPUS


class FleetMetrics:
    """A Prometheus collector that queries one session; register it for one scrape."""

    def __init__(self, session: Session, settings: Settings) -> None:
        self._session, self._settings = session, settings

    def collect(self) -> Iterator[Metric]:
        yield from self._queue()
        yield from self._scheduler()
        yield from self._fleet()
        yield from self._executors()
        yield from self._answer_sessions()
        yield self._mirrors()
        taken = select(func.extract("epoch", NewestBackup.taken_at))  # no sample before the first backup
        yield self._by("motet_backup_newest_timestamp_seconds", "When the newest backup was taken", taken, [])

    def _queue(self) -> Iterator[Metric]:
        yield self._by("motet_tasks", "Tasks by status", by_status(Task), ["status"])
        yield self._by("motet_jobs", "Jobs by status", by_status(Job), ["status"])
        for name, what, status in (
            ("motet_queue_validating_age_seconds", "Age of the oldest task that is not validated", TaskStatus.VALIDATING),
            ("motet_queue_oldest_wait_seconds", "Wait of the task that is queued longest", TaskStatus.QUEUED),
        ):
            since = func.coalesce(Task.queued_at, Task.created_at) if status == TaskStatus.QUEUED else Task.created_at
            yield self._one(name, what, _age(func.min(since)).where(Task.status == status))
        # `type` is "any": a spec names no type of GPU. An autoscaler adds nodes of at least `width` GPUs.
        wanted = select(literal("any"), WANTED_GPUS, func.sum(WANTED_GPUS)).where(Task.status == TaskStatus.QUEUED)
        yield self._by("motet_gpus_wanted", "GPUs that queued tasks ask for", wanted.group_by(WANTED_GPUS), ["type", "width"])

    def _mirrors(self) -> Metric:
        family = GaugeMetricFamily(
            "motet_mirrors_open", "Mirrors on tracking servers that are kept up to date", labels=["visit"]
        )
        failed = func.count().filter(TaskMirror.attempts > 0)
        count, failing = self._session.execute(
            select(func.count(), failed).where(TaskMirror.state == literal_column("'active'"))  # of its index
        ).one()
        family.add_metric(["failing"], float(failing))
        family.add_metric(["fine"], float(count - failing))
        return family

    def _scheduler(self) -> Iterator[Metric]:
        yield self._one("motet_scheduler_requests", "Changes that no plan has answered", select(func.count(PlanRequest.id)))
        yield self._one(
            "motet_scheduler_oldest_request_seconds", "Age of the oldest of them", _age(func.min(PlanRequest.created_at))
        )
        recent = Plan.created_at > func.clock_timestamp() - func.make_interval(0, 0, 0, 0, 1)
        yield self._by(
            "motet_scheduler_plans_last_hour",
            "Plans of the last hour by method",
            select(Plan.method, func.count()).where(recent).group_by(Plan.method),
            ["method"],
        )
        slowest = select(func.coalesce(func.max(Plan.seconds), 0)).where(recent)
        yield self._one("motet_scheduler_slowest_plan_seconds", "Longest time to solve of the last hour", slowest)

    def _fleet(self) -> Iterator[Metric]:
        by_presence = select(Node.presence, func.count()).where(Node.removed_at.is_(None)).group_by(Node.presence)
        yield self._by("motet_nodes", "Nodes: ready, lost, or stopped in order", by_presence, ["status"])
        ready = self._session.scalars(select(Node).where(Node.status == "ready")).all()
        yield self._in_trouble(ready)
        total = sum(len(node.devices) for node in ready if not node.unreadable)
        yield GaugeMetricFamily("motet_devices", "Devices of nodes that are ready and can be read", value=float(total))
        held = select(Placement.node_id, func.unnest(Placement.device_indexes)).where(Placement.ended_at.is_(None)).distinct()
        busy = select(func.count()).select_from(held.subquery())
        yield self._one("motet_devices_in_use", "Devices that placements hold, alone or together", busy)
        beat = _age(func.min(Node.heartbeat_at)).where(Node.status == "ready", Node.stopping_since.is_(None))
        yield self._one("motet_nodes_oldest_heartbeat_seconds", "Age of the oldest last heartbeat of a ready node", beat)

    def _in_trouble(self, ready: Sequence[Node]) -> Metric:
        """Nodes whose heartbeats come and that get no new placements all the same."""
        family = GaugeMetricFamily("motet_nodes_in_trouble", "Ready nodes that take no work, by why", labels=["status"])
        now = clock(self._session)
        found = Counter(trouble.status for node in ready if (trouble := trouble_of(node, now, self._settings)) is not None)
        for status in TROUBLES:
            family.add_metric([status], float(found[status]))
        drained = select(func.count()).where(Node.status == "ready", Node.drained_at.is_not(None))
        family.add_metric(["drained"], float(self._session.scalars(drained).one()))
        return family

    def _executors(self) -> Iterator[Metric]:
        placements = placements_by_end().c
        sums = [func.coalesce(func.sum(placements[name]), 0) for name in SUMS]
        rows = self._session.execute(
            select(placements.reason, func.sum(placements.rows), *sums).group_by(placements.reason)
        ).all()
        for at, (name, what) in enumerate(_SUMS, start=2):
            yield CounterMetricFamily(name, what, value=float(sum(row[at] for row in rows)))
        family = GaugeMetricFamily("motet_placements", "Placements by how they ended; live ones have not", labels=["end"])
        for row in rows:
            family.add_metric([str(row[0])], float(row[1]))
        yield family

    def _answer_sessions(self) -> Iterator[Metric]:
        live = GaugeMetricFamily("motet_answer_sessions", "Devices that hold a base for who asks it", labels=["base_model"])
        held = CounterMetricFamily(
            "motet_answer_session_gpu_seconds",
            "Device seconds for which bases were held for who asks them, idle or not; billed to nobody",
            labels=["base_model"],
        )
        for base, count, seconds in self._session.execute(held_by_base()):
            live.add_metric([base], float(count))
            held.add_metric([base], float(seconds))
        yield from (live, held)

    def _one(self, name: str, what: str, statement: Select[Any]) -> Metric:
        return GaugeMetricFamily(name, what, value=float(self._session.scalars(statement).one() or 0))

    def _by(self, name: str, what: str, statement: Select[*tuple[Any, ...]], labels: Sequence[str]) -> Metric:
        family = GaugeMetricFamily(name, what, labels=labels)
        for *given, value in self._session.execute(statement):
            family.add_metric([str(label) for label in given], float(value))
        return family


_SUMS = (  # in the order of ended_totals.SUMS
    ("motet_executor_trained_tokens", "Tokens trained"),
    ("motet_executor_evaluated_tokens", "Tokens evaluated"),
    ("motet_executor_steps", "Optimizer steps of placements"),
    ("motet_executor_forwards", "Forwards of shared bases, counted for each placement in them"),
    ("motet_executor_gpu_seconds", "Device seconds of steps and evaluations"),
)


def _age(since: Any) -> Select[Any]:
    return select(func.extract("epoch", func.clock_timestamp() - since))
