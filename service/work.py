"""What each queue job does. Only a queue worker loads this; see queue.py for how the names get here."""

import logging
from collections.abc import Callable, Mapping

from service.parts import Parts
from service.queue import QueueJob
from service.scheduler.loop import replan
from service.settings import Settings
from service.sweep import sweep
from service.tasks.validate import validate_due

log = logging.getLogger(__name__)


def assemble(settings: Settings) -> Mapping[QueueJob, Callable[[], None]]:
    """What a worker of these settings does for each queue job. Each finds its own work, and may find none."""
    parts = Parts.of(settings)

    def plan() -> None:
        replan(parts)

    def validate() -> None:
        validate_due(parts.db, parts.storage, parts.queue)

    def collect() -> None:
        sweep(parts.db, parts.storage)

    return {QueueJob.REPLAN: plan, QueueJob.VALIDATE: validate, QueueJob.SWEEP: collect}
