"""Estimates a task without creating it: tokens, GPU seconds, expected start and end, rows that would be truncated.

Stores nothing. Plans by the rules alone (rules.py), since a request must not wait for a solver. Estimates of the fleet's other
tasks come from the cache. Not thread-safe.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from contract.gpu_counts import gpu_count
from contract.states import JobStatus, TaskStatus
from contract.task_spec import TaskSpec
from service.database.engine import new_id
from service.dependencies import Dependencies
from service.fleet.base_models.gpu_fit import memory_of
from service.fleet.models import Node
from service.http.problems import FieldError
from service.scheduler.core.decision import Decision, ShortPreemption
from service.scheduler.core.joins.joining import joined_plan_by_rules
from service.scheduler.core.preemption.shortest_remaining import shorter_first
from service.scheduler.core.problem import Start
from service.scheduler.estimate.node_shapes import shape_of
from service.scheduler.estimate.prediction_intervals import PredictedInterval as Interval
from service.scheduler.estimate.task_duration import BYTES_PER_TOKEN, Estimate
from service.scheduler.explain import waiting_sentences
from service.scheduler.explain.join_sentences import shares_sentence
from service.scheduler.explain.reason_codes import Reason, reasons
from service.scheduler.state import snapshot
from service.scheduler.state.plan_announcements import download_first, scene
from service.scheduler.state.snapshot import HypotheticalTask, Snapshot
from service.storage.object_store import Storage
from service.tasks.models import Job, Task
from service.tasks.plan_status import unplanned_reasons
from service.tasks.submission.spec_checks import ResolvedRefs, columns_of
from service.usage.prices import Prices, read_prices

_ANY = "an accelerator"  # a GPU type that no node has yet
_LISTED = 50  # most rows listed
_LOOKED_AT = 64 * 2**20  # most bytes read of a file


class Between(BaseModel):
    """The expected value, and the interval that holds the true one most of the time."""

    expected: float
    low: float
    high: float


class WidthEstimate(BaseModel):
    """What the task would take on so many GPUs of one node."""

    gpus: int
    seconds: Between
    gpu_seconds: Between = Field(description="The seconds of all of them, which is what is paid for")


class EstimateResource(BaseModel):
    """What the task would take if it were posted now."""

    object: Literal["estimate"] = "estimate"
    jobs: int
    tokens: float = Field(description="Expected to be trained; early exit is counted in")
    full_tokens: float = Field(description="If every job trained to its end")
    text_tokens: float | None = Field(
        default=None,
        description="At most read and generated for `evaluation`: every text as long as max_new_tokens allows, an adapter kept "
        "of every job, and where select_by is a metric each job's at the end of warmup. Billed as evaluation tokens, and not "
        "among tokens; null where none is asked",
    )
    text_gpu_seconds: float | None = Field(
        default=None,
        description="Of gpu_seconds.expected, what these texts take at most, from the measured times of steps; the low end of "
        "each interval has that of reading their prompts alone. Contained in the cost and the expected end",
    )
    gpus: int = Field(description="That it would start on: more than gpus where max_gpus allows it and they stand idle")
    gpu_seconds: Between = Field(description="At that width")
    widths: list[WidthEstimate] = Field(description="Each width that the spec allows, ascending")
    cost: Between | None = Field(
        default=None,
        description="At that width, by the price of the type that it would start on; where its start is unknown, from the "
        "cheapest of the types that it fits to the dearest. Null where one of these has no price",
    )
    currency: str = Field(default="", description="Of the cost")
    device_type: str | None = Field(description="The estimate is for this one, the fleet's fastest that it fits")
    expected_start: datetime | None = Field(description="Null where no node has room for it")
    expected_end: datetime | None
    expected_start_interval: list[datetime] | None
    expected_end_interval: list[datetime] | None
    waiting: str | None = Field(description="Why it would not start at once")
    slowdown: float = Field(description="How many times slower than alone it would begin, beside others; 1: it would be alone")
    sharing: str | None = Field(description="With how many tasks it would share GPUs, and what that means, in a sentence")
    sharding: str | None = Field(
        default=None,
        description="How its GPUs share the base, in a sentence; null where a copy fits on each. A worker that finds no room "
        "beside it for the task's passes shares some layers all the same, which the task's events tell",
    )
    base_download: str | None = Field(
        description="What its node fetches from the hub, or from storage, before it can train, in a sentence"
    )
    problems: list[FieldError] = Field(description="Rows of its files that will be cut or left out; GPUs that stand idle")


def dry_run(
    session: Session, dependencies: Dependencies, tenant_id: str, spec: TaskSpec, refs: ResolvedRefs
) -> EstimateResource:
    """The estimate for a spec that has passed preflight. The session's transaction must be new and see all tenants' rows."""
    asked = asked_of(tenant_id, spec, refs)
    seen = snapshot.read(session, dependencies, asked=[asked])
    prices = read_prices(session, dependencies.settings)
    return DraftPlan(seen, joined_plan_by_rules(seen.problem), prices).estimate(dependencies, asked.task, spec, refs)


class DraftPlan:
    """A snapshot that holds tasks without rows, and a plan of it; what it says of all tasks is worked out once."""

    def __init__(self, seen: Snapshot, plan: Decision, prices: Prices) -> None:
        self._seen, self._held, self._prices = seen, plan.held, prices
        self._joins = {join.task: join for join in plan.joins}
        shared = (Start(join.task, join.node, 0, join.end, seen.tasks[join.task].gpus) for join in plan.joins)
        sooner = {made.task: made for made in shorter_first(seen.problem, plan)}
        pausing = (self._preempting(made) for made in sooner.values())
        self._starts = (*(start for start in plan.starts if start.task not in sooner), *shared, *pausing)
        self._by_task = {start.task: start for start in self._starts}

    def _preempting(self, made: ShortPreemption) -> Start:
        """The start of a task that running ones are paused for."""
        leave = self._seen.problem.leave or 0
        return Start(made.task, made.node, leave, leave + made.seconds, self._seen.tasks[made.task].gpus)

    @cached_property
    def _between(self) -> dict[str, Interval]:
        return self._seen.between(self._starts)

    @cached_property
    def _scene(self) -> waiting_sentences.Scene:
        return scene(self._seen, self._starts)

    @cached_property
    def _reasons(self) -> dict[str, Reason]:
        found = reasons(self._seen.problem, self._starts, self._seen.standing or None, self._held)
        return {one.task: one for one in found}

    def estimate(self, dependencies: Dependencies, task: Task, spec: TaskSpec, refs: ResolvedRefs) -> EstimateResource:
        """The estimate of one of the tasks."""
        seen, start = self._seen, self._by_task.get(task.id)
        kinds = {node.device_type: node for node in seen.nodes.values() if seen.work.fits(task, shape_of(node))}
        found = {kind: seen.work.estimate(task, kind or _ANY, spec.gpus) for kind in kinds or ("",)}
        kind, best = min(found.items(), key=lambda item: item[1].seconds)
        widths = [_width(seen.work.estimate(task, kind or _ANY, gpus), gpus) for gpus in spec.widths]
        taken = next(width for width in widths if start is None or width.gpus == start.gpus)
        return EstimateResource(
            jobs=spec.search_space.size,
            tokens=best.tokens,
            full_tokens=seen.work.full_tokens(task),
            text_tokens=seen.work.texts(task).tokens if spec.evaluation is not None else None,
            text_gpu_seconds=self._text_seconds(task, kind, taken.gpus) if spec.evaluation is not None else None,
            gpus=taken.gpus,
            gpu_seconds=taken.gpu_seconds,
            widths=widths,
            cost=self._cost(task, taken.gpus, kind, [seen.nodes[start.node].device_type] if start is not None else list(kinds)),
            currency=dependencies.settings.currency,
            device_type=kind or None,
            **self._moments(start),
            waiting=self._why(start, task.id),
            **self._sharing(task.id),
            sharding=self._sharding(task, taken.gpus, seen.nodes[start.node] if start is not None else kinds.get(kind)),
            base_download=None if start is None or task.id in self._joins else download_first(seen, start),
            problems=[*_idle(spec), *_rows(dependencies, spec, refs)],
        )

    def _text_seconds(self, task: Task, kind: str, gpus: int) -> float:
        """Of all GPUs."""
        return gpus * self._seen.work.estimate(task, kind or _ANY, gpus).text_seconds

    def _cost(self, task: Task, gpus: int, fastest: str, kinds: Sequence[str]) -> Between | None:
        """By what GPUs of each of these types would cost; expected is the fastest's where it is among them."""
        day, found = self._seen.at.date(), dict[str, Between]()
        for kind in kinds:
            hour, used = self._prices.per_hour(kind, day), _width(self._seen.work.estimate(task, kind, gpus), gpus).gpu_seconds
            if hour is None:
                return None
            found[kind] = Between(**{name: value / 3600 * hour for name, value in used})
        if not found:
            return None
        lows, highs = [one.low for one in found.values()], [one.high for one in found.values()]
        return Between(expected=found.get(fastest, found[kinds[0]]).expected, low=min(lows), high=max(highs))

    def _sharing(self, id: str) -> dict[str, Any]:
        join = self._joins.get(id)
        if join is None:
            return {"slowdown": 1.0, "sharing": None}
        node = self._seen.nodes[join.node]
        return {"slowdown": join.slowdown, "sharing": shares_sentence(join, node.name, node.device_type)}

    def _sharding(self, task: Task, gpus: int, node: Node | None) -> str | None:
        if node is None or not self._seen.work.sharded(task, node, gpus):
            return None
        copy, memory = (f"{size / 2**30:.1f} GiB" for size in (self._seen.work.bytes_per_gpu(task), memory_of(node)))
        shared = f"{gpu_count(gpus, node.device_type)} share the layers that do not fit, and gather each as passes need it"
        return f"A copy of the base takes {copy}, and each has {memory} for it and for passes: {shared}."

    def _moments(self, start: Start | None) -> dict[str, datetime | list[datetime] | None]:
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


def _idle(spec: TaskSpec) -> Iterator[FieldError]:
    """A warning about GPUs that would get no job: a job is never split over GPUs."""
    jobs = spec.search_space.size
    if spec.gpus > jobs:
        message = (
            f"is {spec.gpus}, but the search space makes jobs for {jobs} and none is split: {spec.gpus - jobs} would stand idle"
        )
        yield FieldError(field="gpus", code="gpus_idle", message=message)
    elif spec.max_gpus is not None and spec.max_gpus > jobs:
        widest = max(width for width in spec.widths if width <= jobs)
        message = f"is {spec.max_gpus}, but the search space makes jobs for {jobs} and none is split: at most {widest} are used"
        yield FieldError(field="max_gpus", code="gpus_idle", message=message)


def _rows(dependencies: Dependencies, spec: TaskSpec, refs: ResolvedRefs) -> Iterator[FieldError]:
    """Warnings about rows that seem longer than max_seq_len, by their bytes: the service has no tokenizer."""
    most = spec.training.max_seq_len
    for field, file in (("dataset.file_id", refs.train), ("dataset.validation_file_id", refs.validation)):
        if file is None:
            continue
        key = "long rows", file.sha256, most
        found = dependencies.estimate_cache.get(key, lambda file=file: _long_rows(dependencies.storage, file.sha256, most))  # type: ignore[misc]
        for line, tokens in found.lines:
            message = f"has about {tokens} tokens, training.max_seq_len is {most}; it will be cut"
            yield FieldError(field=field, line=line, code="row_truncated", message=message)
        if found.until is not None:
            message = f"is looked at in its first {_LOOKED_AT // 2**20} MiB alone; longer rows behind this line are not listed"
            yield FieldError(field=field, line=found.until, code="rows_not_looked_at", message=message)


class _LongRows(NamedTuple):
    """Some of a file's rows above a length limit, as (line, approximate tokens); `until` is the last line read, None: all."""

    lines: tuple[tuple[int, int], ...]
    until: int | None


def _long_rows(storage: Storage, sha256: str, most: int) -> _LongRows:
    found, read = list[tuple[int, int]](), 0
    with storage.open(sha256) as lines:
        for number, line in enumerate(lines, 1):
            read += len(line)
            tokens = round(len(line) / BYTES_PER_TOKEN)
            if tokens > most:
                found.append((number, tokens))
            if len(found) == _LISTED:
                break
            if read >= _LOOKED_AT:
                return _LongRows(tuple(found), number)
    return _LongRows(tuple(found), None)
