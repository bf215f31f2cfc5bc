"""What the planner learns from reports: step times, how long jobs live, and whether an expected end has moved.

Implements service/fleet/learning_protocol.py, so that the fleet knows no planner.
"""

import logging
from collections.abc import Sequence

from sqlalchemy.orm import Session

from contract.messages.report_messages import Throughput
from service.fleet.models import Node, Placement
from service.scheduler.estimate import drift, learned_profiles
from service.scheduler.estimate.survival import shape_class
from service.scheduler.estimate.task_duration import measured_rate
from service.scheduler.estimate.task_workload import progress_of
from service.tasks.models import Task
from service.tasks.stored_specs import spec_of

log = logging.getLogger(__name__)


class ReportLearning:
    def note_steps(self, session: Session, task: Task, node: Node, gpus: int, done: Sequence[Throughput]) -> list[int]:
        """Update the node's measured speed with this base, and the profiles of such steps on its device type."""
        for one in done:
            before = node.tokens_per_second.get(task.base_model)
            rate = measured_rate(before, one.tokens, one.own_seconds, gpus)
            if rate is not None:
                node.tokens_per_second = node.tokens_per_second | {task.base_model: rate}
        return learned_profiles.note_steps(session, task.base_model, task.precision, node.device_type, gpus, done)

    def note_ended(self, session: Session, task: Task) -> None:
        """Add the lives of the task's jobs to its class; skipped if only another version can read the task."""
        known = [job for job in task.jobs if job.total_steps is not None and job.warmup_steps is not None]
        try:
            spec = spec_of(task)
            lived = [progress_of(spec, job, 1) for job in known]
        except ValueError as error:
            log.warning("nothing is learned from task %s, which this version cannot read: %s", task.id, error)
        else:
            learned_profiles.note_ended(session, shape_class(spec), lived)

    def end_moved(self, session: Session, task: Task, placement: Placement) -> bool:
        return drift.end_moved(session, task, placement)
