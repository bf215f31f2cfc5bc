"""Predicts how long tasks take on which nodes, from the rows: jobs, files, measured speeds and learned exits.

task_duration.py has the arithmetic. A task that this version cannot read is in `unread`, and has no estimate.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.compatibility.capabilities import needed
from contract.evaluation_plan import EVALUATIONS
from contract.job_schedule import JobSchedule
from contract.states import JOB_TERMINAL, ExitReason, JobStatus, TaskStatus
from contract.task_spec import MAX_SLOWDOWN, Precision, TaskSpec
from contract.validation_parts import held_out_rows, validation_parts
from service.files.models import File
from service.fleet.base_models.base_refs import fetch_capabilities
from service.fleet.base_models.gpu_fit import BYTES_PER_WEIGHT
from service.fleet.models import BaseModel
from service.lru_cache import LruCache
from service.scheduler.core.gpu_types import hardware
from service.scheduler.core.joins.slowdowns import MARGIN, Sharing
from service.scheduler.core.problem import Width
from service.scheduler.estimate import learned_profiles
from service.scheduler.estimate.base_fit import BaseFit
from service.scheduler.estimate.node_shapes import Shape, Shapes
from service.scheduler.estimate.sharing_estimate import ALONE_AFTER, sharing
from service.scheduler.estimate.step_cost import StepCost, step_cost
from service.scheduler.estimate.survival import ReportedProgress, shape_class
from service.scheduler.estimate.task_duration import Estimate, TaskWork, estimate, tokens_per_row
from service.scheduler.estimate.text_tokens import TextWork, texts_due
from service.scheduler.estimate.throughput import ThroughputModel, relevant
from service.tasks.models import Job, Task
from service.tasks.stored_specs import SpecUnreadable, config_of, spec_of
from service.tenants.models import Tenant

PAYS = 0.1  # least part of the time that a doubling of the GPUs must save


class Workload:
    """Estimates for the given tasks, whose rows are read at one moment. `cache` caches those of unchanged tasks.

    `unsaved` are the jobs of tasks without rows.
    """

    def __init__(
        self, session: Session, tasks: Iterable[Task], cache: LruCache, unsaved: Mapping[str, Sequence[Job]] | None = None
    ) -> None:
        self._cache = cache
        self.unread: dict[str, str] = {}  # reason, by task
        self.specs: dict[str, TaskSpec] = {}
        tasks = list(tasks)
        for task in tasks:
            try:
                self.specs[task.id] = cache.get(("spec", task.id), lambda task=task: spec_of(task))  # type: ignore[misc]
            except SpecUnreadable as error:
                self.unread[task.id] = str(error)
        sound = [task for task in tasks if task.id in self.specs]
        self._bases = {base.name: base for base in session.scalars(select(BaseModel))}
        files = {id for task in sound for id in (task.train_file_id, task.validation_file_id, task.prompts_file_id) if id}
        self._files = {file.id: file for file in session.scalars(select(File).where(File.id.in_(files)))}
        self._profiles = learned_profiles.profiles(session, {task.base_model for task in sound})
        self._lives = learned_profiles.lives(session, {shape_class(spec) for spec in self.specs.values()})
        self._models: dict[tuple[str, Precision, str], ThroughputModel] = {}
        self._costs: dict[tuple[str, Precision, str], StepCost] = {}
        owners = {task.tenant_id for task in sound}
        rows = session.execute(select(Tenant.id, Tenant.weight, Tenant.max_slowdown).where(Tenant.id.in_(owners)))
        self._owners = {id: (weight, bound) for id, weight, bound in rows}
        self._jobs = self._read(session, sound, unsaved or {})

    def bytes_per_gpu(self, task: Task) -> int:
        """Bytes of a copy of the base's weights, a lower bound; each GPU holds one where it fits."""
        return int(self._bases[task.base_model].parameters * BYTES_PER_WEIGHT[self.specs[task.id].precision])

    def needs(self, task: Task) -> frozenset[str]:
        """The capabilities that a worker needs to train it (contract.compatibility.capabilities)."""
        base = self._bases[task.base_model]
        found: frozenset[str] = self._cache.get(("needs", task.id, base.model_type), lambda: needed(task.spec, base.model_type))
        return found | fetch_capabilities(base)

    def fit(self, task: Task) -> BaseFit:
        """On how many GPUs of which nodes it may run."""
        return BaseFit.of(self.specs[task.id], self.bytes_per_gpu(task))

    def narrowest(self, task: Task, shape: Shape) -> int:
        """GPUs of its narrowest width on such a node; where it does not fit, or cannot be read, those that it asks for."""
        return (self.fit(task).narrowest(shape) if task.id in self.specs else None) or task.gpus

    def narrowest_running(self, task: Task, shape: Shape, held: int) -> int:
        """GPUs of its narrowest width where it runs on `held` of such a node; all of these, of which it spares none, where it
        does not fit: a worker that does not shard has replaced one that does."""
        if task.id in self.specs and self.fit(task).narrowest(shape) is None:
            return held
        return min(self.narrowest(task, shape), held)

    def left(self, task: Task) -> int:
        """The number of jobs that have not ended."""
        return sum(job.status not in JOB_TERMINAL for job in self._jobs[task.id])

    def estimate(self, task: Task, kind: str, gpus: int) -> Estimate:
        """The remaining work of the task on `gpus` devices of a type."""
        spec, of_class = self.specs[task.id], self._lives[shape_class(self.specs[task.id])]
        jobs, model = self._jobs[task.id], self._model(task.base_model, spec.precision, kind)
        file = self._files[task.train_file_id]
        rows = rows_of(task, spec, file, self._files.get(task.validation_file_id or ""))
        validation: int = self._cache.get(("evaluated", task.id, rows), lambda: _rows_an_evaluation(spec, *rows))
        tokens, texts = _tokens_per_row(spec, file), self.texts(task)

        def work_out() -> Estimate:
            return estimate(TaskWork(jobs, spec.early_exit, tokens, validation, of_class, texts), model, gpus)

        moment = task.fence if task.status == TaskStatus.QUEUED else (jobs, validation, texts)
        return self._cache.get(("estimate", task.id, moment, model, of_class, gpus), work_out)

    def texts(self, task: Task) -> TextWork:
        """The texts that its evaluation has yet to generate."""
        spec, train = self.specs[task.id], self._files[task.train_file_id]
        prompts, held_out = (self._files.get(id or "") for id in (task.prompts_file_id, task.validation_file_id))
        file = prompts or held_out or train
        rows = prompts.rows if prompts is not None else rows_of(task, spec, train, held_out)[1]
        return texts_due(spec, self._jobs[task.id], rows, tokens_per_row(file.bytes, file.rows, spec.training.max_seq_len))

    def bound(self, task: Task) -> float:
        """The largest slowdown that sharing may cause it: its own, its tenant's default, or the product's; 1: it shares with
        nobody, as up to MARGIN nobody could be within it."""
        spec = self.specs[task.id]
        if spec.isolation == "dedicated" or (task.lost_executors or 0) >= ALONE_AFTER:
            return 1.0
        _, of_tenant = self._owners.get(task.tenant_id, (1.0, None))
        bound = spec.max_slowdown or of_tenant or MAX_SLOWDOWN
        return bound if bound > MARGIN else 1.0

    def sharing(self, task: Task, shape: "Shape", gpus: int) -> Sharing | None:
        """What it would bring to an executor on `gpus` GPUs of a node of this shape; None if it shares with nobody there."""
        bound, precision, held = self.bound(task), self.specs[task.id].precision, self.fit(task).held_bytes(shape, gpus)
        if bound <= 1 or gpus > shape.gpus or held is None:
            return None
        key, file = (task.base_model, precision, shape.kind), self._files[task.train_file_id]
        if key not in self._costs:
            self._costs[key] = step_cost(self._model(*key))
        weight, _ = self._owners.get(task.tenant_id, (1.0, None))
        return sharing(
            f"{task.base_model} {task.base_revision} {precision}",
            self._jobs[task.id],
            _tokens_per_row(self.specs[task.id], file),
            self._costs[key],
            gpus,
            shape.memory - held,
            self._bases[task.base_model].parameters,
            bound,
            weight,
        )

    def full_tokens(self, task: Task) -> float:
        """Tokens that its jobs would train without any early exit."""
        spec, file = self.specs[task.id], self._files[task.train_file_id]
        tokens = _tokens_per_row(spec, file)
        return sum(job.total_steps * job.batch_size * tokens for job in self._jobs[task.id])

    def widths(self, task: Task, nodes: "Shapes", most: int) -> tuple[Width, ...]:
        """Its duration on each node: at the narrowest width there, then at each wider one, ascending, that its spec allows and
        that saves enough there.

        No wider width exceeds `most` GPUs or the number of its live jobs; each must save a part (`PAYS`) of the next narrower
        one's time on that node.
        """
        fit, widest = self.fit(task), min(self.left(task), most)
        least = {shape: fit.narrowest(shape) for shape in nodes.distinct}
        before = {shape: self._seconds(task, shape, gpus, fit) if gpus else None for shape, gpus in least.items()}
        found = [_narrowest(task, nodes, least, before)]
        for gpus in self.specs[task.id].widths[1:]:
            if gpus > widest:
                break
            wider = {
                shape: self._paying(task, shape, gpus, before[shape], fit) for shape, few in least.items() if (few or 0) < gpus
            }
            before |= wider
            if not any(before.values()):
                break
            if any(wider.values()):
                found.append(Width(gpus, nodes.each(_whole(dict.fromkeys(before) | wider))))
        return tuple(found)

    def _seconds(self, task: Task, shape: "Shape", gpus: int, fit: BaseFit) -> float | None:
        """Seconds, or None where the task does not fit."""
        return self.estimate(task, shape.kind, gpus).seconds if fit.held_bytes(shape, gpus) is not None else None

    def _paying(self, task: Task, shape: "Shape", gpus: int, narrower: float | None, fit: BaseFit) -> float | None:
        """As `_seconds`, but also None if that saves too little against the `narrower` width's time, or if that is None."""
        seconds = self._seconds(task, shape, gpus, fit) if narrower is not None else None
        return seconds if seconds is not None and narrower is not None and seconds <= (1 - PAYS) * narrower else None

    def _model(self, base: str, precision: Precision, kind: str) -> ThroughputModel:
        if (base, precision, kind) not in self._models:
            parameters = self._bases[base].parameters
            known = relevant(self._profiles, base, precision, kind)
            moved = BYTES_PER_WEIGHT[precision]
            if precision == "fp8":  # transposed at each pass: written and read once more
                moved += 2 * BYTES_PER_WEIGHT["fp8"]
            elif precision != "bf16":  # decoded at each pass: the decoded weight is written and read once more
                moved += 2 * BYTES_PER_WEIGHT["bf16"]
            self._models[base, precision, kind] = ThroughputModel(parameters, round(parameters * moved), hardware(kind), known)
        return self._models[base, precision, kind]

    def _read(
        self, session: Session, tasks: list[Task], unsaved: Mapping[str, Sequence[Job]]
    ) -> dict[str, tuple[ReportedProgress, ...]]:
        """All jobs of each task. While a task is queued, its jobs change only with its fence."""
        keys = {task.id: ("jobs", task.id, task.fence) for task in tasks if task.status == TaskStatus.QUEUED}
        moved = [task.id for task in tasks if keys.get(task.id) not in self._cache]
        rows: dict[str, list[Any]] = defaultdict(list, {id: list(jobs) for id, jobs in unsaved.items()})
        if moved:
            columns = (Job.task_id, Job.status, Job.step, Job.total_steps, Job.warmup_steps, Job.config, Job.promoted)
            asked = select(*columns, Job.exit_reason).where(Job.task_id.in_(moved)).order_by(Job.task_id, Job.index)
            for row in session.execute(asked):
                rows[row.task_id].append(row)
        found: dict[str, tuple[ReportedProgress, ...]] = {}
        for task in tasks:
            train, _ = rows_of(
                task, self.specs[task.id], self._files[task.train_file_id], self._files.get(task.validation_file_id or "")
            )

            def read(task: Task = task, train: int = train) -> tuple[ReportedProgress, ...]:
                return tuple(progress_of(self.specs[task.id], job, train) for job in rows[task.id])

            try:
                found[task.id] = self._cache.get(keys[task.id], read) if task.id in keys else read()
            except ValueError as error:  # SpecUnreadable, or a status of a newer version
                self.unread[task.id] = str(error)
                del self.specs[task.id]
        return found


def _narrowest(task: Task, nodes: Shapes, least: Mapping[Shape, int | None], seconds: Mapping[Shape, float | None]) -> Width:
    """The width of `least` GPUs by shape."""
    known = {gpus for gpus in least.values() if gpus is not None}
    fewest = min(known, default=task.gpus)
    needs = nodes.each({shape: gpus or fewest for shape, gpus in least.items()}) if len(known) > 1 else ()
    return Width(fewest, nodes.each(_whole(seconds)), needs)


def _whole(seconds: Mapping[Shape, float | None]) -> dict[Shape, int | None]:
    """In whole seconds, as the planner counts; only after widths were compared, of which a second may be the whole gain."""
    return {shape: max(1, round(each)) if each is not None else None for shape, each in seconds.items()}


def rows_of(task: Task, spec: TaskSpec, file: File, held_out: File | None) -> tuple[int, int]:
    """Training and validation rows: as a worker counted them, else estimated from the files and the spec."""
    if task.train_rows is not None and task.validation_rows is not None:
        return task.train_rows, task.validation_rows
    if held_out is not None:
        return file.rows, held_out.rows
    validation = held_out_rows(file.rows, spec.dataset.validation_fraction, spec.dataset.max_validation_rows)
    return max(1, file.rows - validation), validation


def _tokens_per_row(spec: TaskSpec, file: File) -> float:
    """Of a training row, as estimated: under dpo a row is two sequences, each with the prompt."""
    if spec.objective.type == "dpo":
        return tokens_per_row(file.bytes + (file.prompt_bytes or 0), file.rows, spec.training.max_seq_len, 2)
    return tokens_per_row(file.bytes, file.rows, spec.training.max_seq_len)


def _rows_an_evaluation(spec: TaskSpec, train: int, validation: int) -> int:
    """Validation rows of an evaluation on average, if a job has EVALUATIONS of them: few for its trend, all at the cut and at
    its end."""
    plan, jobs = validation_parts(spec, train, validation), spec.search_space.size
    config = next(iter(spec.search_space.expand({"weight_decay": spec.training.weight_decay})))
    schedule = JobSchedule.of(spec, config, train)
    passing, every = spec.early_exit.survivors(jobs)[1] / jobs, spec.early_exit.eval_every
    reached = schedule.warmup_steps / schedule.total_steps * (1 - passing) + passing
    often = schedule.total_steps / (every or max(1, schedule.total_steps // EVALUATIONS))
    return math.ceil(plan.rows(schedule.course(jobs, min(config.batch_size, train)), passing) / (often * reached))


def progress_of(spec: TaskSpec, job: Any, rows: int) -> ReportedProgress:
    """A job's progress for the estimates. `rows` train, from which its step counts follow before a worker has counted them.

    Raises ValueError if only another version can read it.
    """
    config = config_of(job.config)
    total, warmup = job.total_steps, job.warmup_steps
    if total is None or warmup is None:
        schedule = JobSchedule.of(spec, config, rows)
        total, warmup = schedule.total_steps, schedule.warmup_steps
    return ReportedProgress(
        JobStatus(job.status),
        job.step,
        total,
        warmup,
        config.batch_size,
        job.promoted,
        ExitReason(job.exit_reason) if job.exit_reason else None,
        config.rank,
    )
