"""What a daemon tells an executor that is to hold a placement: to train its task, to answer for its base alone, or to merge an
adapter into it."""

import logging

from contract.compatibility.lenient_documents import unknown_fields
from contract.messages.placement_messages import AnswersOnly, Leased, MergeWork, Placement
from worker.pipe_messages import Attach, Merge, Serve

log = logging.getLogger(__name__)


def attach_command(placement: Leased, deadline: float, executor: str) -> Attach | Serve | Merge:
    """deadline: of its first lease. executor: its name, for the log."""
    if isinstance(placement, AnswersOnly):
        log.info("base %s goes to executor %s, to be asked", placement.base.name, executor)
        return Serve(placement=placement, deadline=deadline)
    if isinstance(placement, MergeWork):
        log.info("merge %s (fence %d) goes to process %s", placement.placement_id, placement.fence, executor)
        return Merge(placement=placement, deadline=deadline)
    assert isinstance(placement, Placement)
    log.info(
        "placement %s of task %s (fence %d, request %s) goes to executor %s",
        placement.placement_id,
        placement.task_id,
        placement.fence,
        placement.request_id,
        executor,
    )
    for field in unknown_fields(placement.spec):
        log.warning("task %s has a spec of another version: this one does not know %s", placement.task_id, field)
    return Attach(placement=placement, deadline=deadline)
