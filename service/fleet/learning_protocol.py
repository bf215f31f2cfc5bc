"""What reports teach the planner, as the fleet calls it. The app hands in the planner's implementation."""

from collections.abc import Sequence
from typing import Protocol

from sqlalchemy.orm import Session

from contract.messages.report_messages import Throughput
from service.fleet.models import Node, Placement
from service.tasks.models import Task


class ProfileUpdates(Protocol):
    """Learns in the report's own transaction."""

    def note_steps(self, session: Session, task: Task, node: Node, gpus: int, done: Sequence[Throughput]) -> list[int]:
        """Learn from measured steps on `gpus` devices of a node, whose row is locked. Returns for each measurement that is not
        empty how many of such steps there are by then."""
        ...

    def note_ended(self, session: Session, task: Task) -> None:
        """Learn from an ended task how long such jobs live."""
        ...

    def end_moved(self, session: Session, task: Task, placement: Placement) -> bool:
        """Whether the running task's expected end moved so far that a new plan is due."""
        ...
