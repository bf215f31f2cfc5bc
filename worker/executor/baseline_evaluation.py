"""Evaluates the baseline of a task: the base's own validation loss, and under DPO the reference log-probabilities."""

import math
from collections.abc import Callable

from contract.wire import BaseEvaluated, Placement
from worker.data.node_cache import NodeCache
from worker.executor.placement_preparation import Prepared
from worker.executor.task_run import TaskRun
from worker.replicas.device_replica import Replica
from worker.replicas.dpo_reference import Reference, key_of, reference_of
from worker.replicas.validation_pass import ValidationSubject, evaluate


def evaluate_baseline(replica: Replica, task: TaskRun, prepared: Prepared, cache: NodeCache, tick: Callable[[], None]) -> None:
    """Evaluate before the task's first step, on one replica for all, and give the jobs the results that they need. Raises
    NoRows for the adapter that the task starts from."""
    if task.placement.spec.objective.type == "dpo":
        reference = _reference(replica, task.placement, prepared, cache, tick)
        for run in task.runs:
            run.refer(reference)
        if task.base_val_loss is None:
            task.record(BaseEvaluated(val_loss=math.log(2)))  # the loss of any model against itself
    elif task.base_val_loss is None:
        subjects = {task.key: ValidationSubject(None, prepared.data.validation)}
        for _, result in evaluate(replica.base.trainer, subjects, replica.capacity.step_tokens, tick):
            task.record(BaseEvaluated(val_loss=result.loss))


def _reference(
    replica: Replica, placement: Placement, prepared: Prepared, cache: NodeCache, tick: Callable[[], None]
) -> Reference:
    trainer, start, store = replica.base.trainer, prepared.start, replica.store
    key = key_of(replica.base.ref, trainer.backbone.device.type, start.sha256 if start is not None else "", prepared.data)
    if placement.validation_file is not None:
        key = f"{key}-{placement.validation_file.sha256}"  # so that erasing either file erases it
    scratch = cache.file(placement.tenant_id, placement.train_file.sha256).references
    slot = store.hold_start(replica.number, start) if start is not None else None
    try:
        return reference_of(trainer, slot, prepared.data, key, scratch, replica.capacity.step_tokens, tick)
    finally:
        if slot is not None:
            store.drop_start(replica.number, slot)
