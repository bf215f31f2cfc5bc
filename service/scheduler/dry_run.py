"""Estimates a task without creating it: tokens, GPU seconds, expected start and end, rows that would be truncated.

Stores nothing. Plans by the rules alone (rules.py), since a request must not wait for a solver. Estimates of the fleet's other
tasks come from the cache. Not thread-safe.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from contract.gpu_counts import gpu_count
from contract.states import JobStatus, TaskStatus
from contract.task_spec import TaskSpec
from contract.wording.size_words import gibibytes
from service.database.engine import new_id
from service.dependencies import Dependencies
from service.fleet.base_models.gpu_fit import memory_of
from service.fleet.models import Node
from service.scheduler.core.decision import Decision, ShortPreemption
from service.scheduler.core.joins.joining import joined_plan_by_rules, settled_joins
from service.scheduler.core.preemption.shortest_remaining import around, shorter_first
from service.scheduler.core.problem import Start
from service.scheduler.estimate.node_shapes import shape_of
from service.scheduler.estimate.prediction_intervals import PredictedInterval as Interval
from service.scheduler.estimate.task_duration import Estimate
from service.scheduler.estimate_resource import Between, DeviceTypeEstimate, EstimateResource, WidthEstimate
from service.scheduler.estimate_warnings import idle_gpus, long_rows, missed_deadline
from service.scheduler.explain import waiting_sentences
from service.scheduler.explain.join_sentences import shares_sentence
from service.scheduler.explain.reason_codes import Reason, reasons
from service.scheduler.state import snapshot
from service.scheduler.state.placement_writer import planned_ends
from service.scheduler.state.plan_announcements import download_first, scene
from service.scheduler.state.snapshot import HypotheticalTask, Snapshot
from service.tasks.models import Job, Task
from service.tasks.plan_status import unplanned_reasons
from service.tasks.submission.spec_checks import ResolvedRefs, columns_of
from service.usage.prices import Prices, read_prices

_ANY = "an accelerator"  # a GPU type that no node has yet


def dry_run(
    session: Session, dependencies: Dependencies, tenant_id: str, spec: TaskSpec, refs: ResolvedRefs
) -> EstimateResource:
    """The estimate for a spec that has passed preflight. The session's transaction must be new and see all tenants' rows."""
    asked = asked_of(tenant_id, spec, refs)
    seen = snapshot.read(session, dependencies, asked=[asked])
    prices = read_prices(session, dependencies.settings)
    return DraftPlan(seen, joined_plan_by_rules(seen.problem), prices).estimate(dependencies, asked.task, spec, refs)


class _TypeFit(NamedTuple):
    """The narrowest width of a task on GPUs of a type, on a node that has them."""

    node: Node | None
    gpus: int
    estimate: Estimate


class DraftPlan:
    """A snapshot that holds tasks without rows, and a plan of it; what it says of all tasks is worked out once."""

    def __init__(self, seen: Snapshot, plan: Decision, prices: Prices) -> None:
        self._seen, self._plan, self._prices = seen, plan, prices
        self._joins = {join.task: join for join in plan.joins}
        self._ends = planned_ends(seen, plan) if plan.joins else {}
        shared = (Start(join.task, join.node, 0, join.end, seen.narrowest(join.task, join.node)) for join in plan.joins)
        starts, self._held = plan.starts, plan.held
        if sooner := shorter_first(seen.problem, plan):
            later, self._held = around(seen.problem, plan, sooner)
            starts = (*(start for start in starts if start.start == 0), *later)
        pausing = (self._preempting(made) for made in sooner)
        alone = (self._beside_joiners(start) for start in starts if start.task in seen.problem.row)
        self._on_free_gpus = (*alone, *pausing)
        self._starts = (*self._on_free_gpus, *shared)
        self._by_task = {start.task: start for start in self._starts}

    def _beside_joiners(self, start: Start) -> Start:
        """The start with the end that it has beside those who would join it at once."""
        beside = self._ends.get(start.task)
        return start if start.start > 0 or beside is None else replace(start, end=max(start.end, beside.end))

    def _preempting(self, made: ShortPreemption) -> Start:
        """The start of a task that running ones are paused for."""
        leave = self._seen.problem.leave or 0
        return Start(made.task, made.node, leave, leave + made.seconds, self._seen.narrowest(made.task, made.node))

    @cached_property
    def _between(self) -> dict[str, Interval]:
        return self._seen.between(self._starts)

    @cached_property
    def _scene(self) -> waiting_sentences.Scene:
        return scene(self._seen, self._starts)

    @cached_property
    def _reasons(self) -> dict[str, Reason]:
        problem = settled_joins(self._seen.problem, self._plan)
        found = reasons(problem, self._on_free_gpus, self._seen.standing or None, self._held)
        return {one.task: one for one in found}

    def estimate(self, dependencies: Dependencies, task: Task, spec: TaskSpec, refs: ResolvedRefs) -> EstimateResource:
        """The estimate of one of the tasks."""
        seen, start = self._seen, self._by_task.get(task.id)
        node, types = seen.nodes[start.node] if start is not None else None, self._types(task)
        kind = min(types, key=lambda kind: types[kind].estimate.seconds)
        narrow = seen.narrowest(task.id, node.id) if node is not None else spec.gpus
        if node is not None and any(gpus > spec.gpus for gpus in (narrow, *(one.gpus for one in types.values()))):
            kind = node.device_type
        best = types[kind]
        least = narrow if node is not None and node.device_type == kind else best.gpus
        allowed = [least, *(gpus for gpus in spec.widths if gpus > least)]
        widths = [_width(seen.work.estimate(task, kind or _ANY, gpus), gpus) for gpus in allowed]
        taken = next(width for width in widths if start is None or width.gpus == start.gpus)
        known = {name: one for name, one in types.items() if one.node is not None}
        planned = {node.device_type: taken.gpus} if node is not None else {}
        moments = self._moments(start)
        return EstimateResource(
            jobs=spec.search_space.size,
            tokens=best.estimate.tokens,
            full_tokens=seen.work.full_tokens(task),
            text_tokens=seen.work.texts(task).tokens if spec.evaluation is not None else None,
            text_gpu_seconds=self._text_seconds(task, kind, taken.gpus) if spec.evaluation is not None else None,
            gpus=taken.gpus,
            gpu_seconds=taken.gpu_seconds,
            widths=widths,
            device_types=[
                DeviceTypeEstimate(device_type=name, **dict(_width(one.estimate, one.gpus))) for name, one in known.items()
            ],
            cost=self._cost(task, kind, {name: one.gpus for name, one in known.items()} if node is None else planned),
            currency=dependencies.settings.currency,
            device_type=kind or None,
            **moments,
            waiting=self._why(start, task.id),
            **self._sharing(task.id),
            sharding=self._sharding(task, taken.gpus, node or best.node),
            base_download=None if start is None or task.id in self._joins else download_first(seen, start),
            problems=[
                *idle_gpus(spec),
                *missed_deadline(spec, seen.at, moments["expected_end"]),
                *long_rows(dependencies, spec, refs),
            ],
        )

    def _types(self, task: Task) -> dict[str, "_TypeFit"]:
        """By type of GPU that the task fits, the node of which it takes the fewest; by "" alone where it fits none."""
        fit, work, found = self._seen.work.fit(task), self._seen.work, dict[str, tuple[Node | None, int]]()
        for node in self._seen.nodes.values():
            gpus, kind = fit.narrowest(shape_of(node)), node.device_type
            if gpus is not None and (kind not in found or gpus <= found[kind][1]):
                found[kind] = (node, gpus)
        fits = (found or {"": (None, task.gpus)}).items()
        return {kind: _TypeFit(node, gpus, work.estimate(task, kind or _ANY, gpus)) for kind, (node, gpus) in fits}

    def _text_seconds(self, task: Task, kind: str, gpus: int) -> float:
        """Of all GPUs."""
        return gpus * self._seen.work.estimate(task, kind or _ANY, gpus).text_seconds

    def _cost(self, task: Task, fastest: str, kinds: Mapping[str, int]) -> Between | None:
        """By what so many GPUs of each of these types would cost; expected is the fastest's where it is among them."""
        day, found = self._seen.at.date(), dict[str, Between]()
        for kind, gpus in kinds.items():
            hour, used = self._prices.per_hour(kind, day), _width(self._seen.work.estimate(task, kind, gpus), gpus).gpu_seconds
            if hour is None:
                return None
            found[kind] = Between(**{name: value / 3600 * hour for name, value in used})
        if not found:
            return None
        lows, highs = [one.low for one in found.values()], [one.high for one in found.values()]
        return Between(expected=found.get(fastest, next(iter(found.values()))).expected, low=min(lows), high=max(highs))

    def _sharing(self, id: str) -> dict[str, Any]:
        join = self._joins.get(id)
        if join is None:
            return {"slowdown": 1.0, "sharing": None}
        node = self._seen.nodes[join.node]
        return {"slowdown": join.slowdown, "sharing": shares_sentence(join, node.name, node.device_type)}

    def _sharding(self, task: Task, gpus: int, node: Node | None) -> str | None:
        if node is None or not self._seen.work.fit(task).sharded(shape_of(node), gpus):
            return None
        copy, memory = gibibytes(self._seen.work.bytes_per_gpu(task)), gibibytes(memory_of(node))
        shared = f"{gpu_count(gpus, node.device_type)} share the layers that do not fit, and gather each as passes need it"
        return f"A copy of the base takes {copy}, and each has {memory} for it and for passes: {shared}."

    def _moments(self, start: Start | None) -> dict[str, Any]:
        names = ("expected_start", "expected_end", "expected_start_interval", "expected_end_interval")
        if start is None:
            return dict.fromkeys(names)
        between = self._between[start.task]

        def moment(seconds: float) -> datetime:
            return self._seen.at + timedelta(seconds=seconds)

        told = (moment(start.start), moment(start.end), [*map(moment, between.start)], [*map(moment, between.end)])
        return dict(zip(names, told, strict=True))

    def _why(self, start: Start | None, id: str) -> str | None:
        if id in self._seen.later:
            return str(unplanned_reasons.not_before(self._seen.later[id])["sentence"])
        if start is not None and start.start == 0:
            return None
        return str(waiting_sentences.explain(self._reasons[id], self._scene, self._seen.at)["sentence"])


def asked_of(tenant_id: str, spec: TaskSpec, refs: ResolvedRefs, batch_id: str | None = None) -> HypotheticalTask:
    """A task that a snapshot can hold, and that is never stored."""
    task = Task(
        id=new_id("asked"),  # a unique id, so that the cache cannot confuse it with another task
        tenant_id=tenant_id,
        status=TaskStatus.QUEUED,
        fence=0,
        **columns_of(spec, refs),
        batch_id=batch_id,
    )
    jobs = [
        Job(status=JobStatus.PENDING, step=0, config=config.model_dump(mode="json"), promoted=False) for config in spec.jobs()
    ]
    return HypotheticalTask(task, jobs)


def _width(found: Estimate, gpus: int) -> WidthEstimate:
    seconds = {"expected": found.seconds, "low": found.low, "high": found.high}
    each = {name: gpus * value for name, value in seconds.items()}
    return WidthEstimate(gpus=gpus, seconds=Between(**seconds), gpu_seconds=Between(**each))
