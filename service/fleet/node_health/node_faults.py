"""Decides whether a lost placement is the node's fault, the task's, or undecided. Values only: knows no rows and no clock.

One loss cannot distinguish a node that kills executors from a task that does. Further losses can: a node that loses several
tasks is at fault, and so is a task that is lost on several nodes which lose nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, ConfigDict

IN_A_ROW = 3  # losses after which a node is quarantined
MAX_EXECUTOR_LOSSES = 5  # of a task, on two nodes, or on one that trained other tasks between its losses
MAX_EXECUTOR_LOSSES_ON_ONE_NODE = 10  # of a task on one node that trained others before its losses, and none since
_LONGEST_REST = 3600.0
_SHORT = 12  # the rest after a second loss in a row is this many times shorter than a quarantine


class Fault(BaseModel):
    """What one node did to a task since the task last got anywhere."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    losses: int = 0  # executors lost
    missed: int = 0  # placements that the node never took up
    first_at: datetime | None = None  # of these losses
    devices: tuple[tuple[int, ...], ...] = ()  # the different sets of devices on which they happened
    rest_until: datetime | None = None  # the node is not given the task before
    refused_by: str | None = None  # the boot id of the node that could not read the task,
    refusal: str = ""  # and what it said


@dataclass(frozen=True)
class Witness:
    """A node's record. `losing` are the tasks lost there in a row, joined by + where they were one loss; `proved_at` is
    when a placement there last saved something, `devices` how many it has."""

    losing: tuple[str, ...]
    proved_at: datetime | None
    devices: int = 1

    def believed_about(self, task: str) -> bool:
        """Whether its losses are evidence against this task: since its last progress the node lost no other task."""
        return set(self.losing) <= {task}


def suspect(task: str, faults: Mapping[str, Fault], witnesses: Mapping[str, Witness], here: str) -> bool:
    """Whether another node that lost nothing else lost the task too, so that its loss `here` says little about this node."""
    return any(
        fault.losses and node != here and node in witnesses and witnesses[node].believed_about(task)
        for node, fault in faults.items()
    )


def at_fault(task: str, faults: Mapping[str, Fault], witnesses: Mapping[str, Witness]) -> bool:
    """Whether the task itself causes the losses, so that it must fail: requeued, it would crash executors again and again.

    True on losses on two nodes, each more than once, which lose nothing else; or on one node that trained other tasks between
    them. If that node trained nothing else in between, more losses are needed; a node that never trained anything is no
    evidence. Neither is a single set of devices of a node with several: one of them may be broken.
    """
    told = [
        (fault.losses, fault.first_at, None if _one_place(fault, witnesses[node]) else witnesses[node].proved_at)
        for node, fault in faults.items()
        if fault.losses and node in witnesses and witnesses[node].believed_about(task)
    ]
    if sum(losses > 1 for losses, _, _ in told) > 1:
        return sum(losses for losses, _, _ in told) >= MAX_EXECUTOR_LOSSES
    for losses, first_at, proved_at in told:
        between = proved_at is not None and first_at is not None and proved_at > first_at
        if (losses >= MAX_EXECUTOR_LOSSES and between) or (losses >= MAX_EXECUTOR_LOSSES_ON_ONE_NODE and proved_at is not None):
            return True
    return False


def _one_place(fault: Fault, witness: Witness) -> bool:
    return len(fault.devices) == 1 and len(fault.devices[0]) < witness.devices


def node_rest(in_a_row: int, quarantine_seconds: float) -> float:
    """Seconds that a node takes no placements after so many losses in a row: none at first, then a few, then doubling."""
    if in_a_row < IN_A_ROW:
        return 0.0 if in_a_row < 2 else quarantine_seconds / _SHORT
    return min(_LONGEST_REST, quarantine_seconds * 2.0 ** min(in_a_row - IN_A_ROW, 16))


def task_rest(fault: Fault, quarantine_seconds: float) -> float:
    """Seconds before a task is placed again on a node that lost it."""
    often = fault.losses + fault.missed
    return 0.0 if often < 2 else min(_LONGEST_REST / 6, quarantine_seconds / _SHORT * 2.0 ** min(often - 2, 16))
