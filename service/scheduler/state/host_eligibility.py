"""Reads nodes and waiting tasks for eligibility.py, and turns its bars into widths and words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import version

from contract.compatibility.capabilities import understood
from contract.compatibility.capabilities_0_1 import CAPABILITIES_0_1
from service.fleet.models import Node
from service.fleet.node_health.quarantine import Trouble, faults_of, trouble_of
from service.scheduler.core.eligibility import Asker, Bar, Bars, Host, bars, burden, capability_words
from service.scheduler.core.problem import Width
from service.settings import Settings
from service.tasks.models import Task

_BARS = {
    "quarantined": Bar.QUARANTINED,
    "not_applying": Bar.NOT_APPLYING,
    "resting": Bar.RESTING,
    "disk_full": Bar.DISK_FULL,
}


@dataclass(frozen=True)
class Hosts:
    """The ready nodes at one moment, in the plan's order, and the troubles of some."""

    nodes: Mapping[str, Node]
    hosts: Sequence[Host]
    troubles: Mapping[str, Trouble]
    now: datetime

    @classmethod
    def of(cls, nodes: Mapping[str, Node], busy: set[str], now: datetime, settings: Settings) -> "Hosts":
        """`busy` are the nodes on which something runs."""
        troubles = {id: found for id, node in nodes.items() if (found := trouble_of(node, now, settings)) is not None}
        return cls(nodes, [_host(node, troubles.get(id), id in busy) for id, node in nodes.items()], troubles, now)

    def bars(self, tasks: Sequence[Task], needs: Mapping[str, frozenset[str]], widths: Mapping[str, Sequence[Width]]) -> Bars:
        """The bars of each task, by node that it fits."""
        plain = not self.troubles and not any(task.faults for task in tasks)
        covered = frozenset.intersection(*(host.capabilities for host in self.hosts)) if self.hosts else frozenset()
        if plain and all(needs[task.id] <= covered for task in tasks):
            return {}
        return bars(self.hosts, [self._asker(task, needs[task.id], widths[task.id]) for task in tasks], self.now)

    def _asker(self, task: Task, needs: frozenset[str], widths: Sequence[Width]) -> Asker:
        pairs = zip(self.hosts, widths[0].seconds, strict=True)
        return Asker(task.id, needs, faults_of(task), frozenset(host.id for host, seconds in pairs if seconds is not None))

    def narrowed(self, task: Task, widths: Sequence[Width], barred: Mapping[str, Bar]) -> list[Width]:
        """The task's widths without nodes that are barred, and with longer durations on nodes that lost it or others lately."""
        if not barred and not task.faults and not any(host.losses for host in self.hosts):
            return list(widths)
        asker = self._asker(task, frozenset(), widths)
        times = [0 if host.id in barred else burden(host, asker) for host in self.hosts]
        found = [
            replace(
                width, seconds=tuple(s * n if s is not None and n else None for s, n in zip(width.seconds, times, strict=True))
            )
            for width in widths
        ]
        return [found[0], *(width for width in found[1:] if any(width.seconds))]

    def lacking(self, task: Task, needs: frozenset[str], barred: Mapping[str, Bar]) -> str | None:
        """What it would take to train the task, if no node understands it; else None."""
        if not barred or not set(barred.values()) <= {Bar.NOT_UNDERSTOOD, Bar.REFUSED}:
            return None
        refusals = [
            f"Node {self.nodes[id].name} could not read it: {faults_of(task)[id].refusal}"
            for id, bar in barred.items()
            if bar is Bar.REFUSED
        ]
        if refusals:
            return f"{refusals[0]}. It starts once a worker of another version joins."
        missing = set[str]().union(*(needs - host.capabilities for host in self.hosts if host.id in barred))
        workers = {self.nodes[id].name: self.nodes[id].versions.get("motet", "an unknown version") for id in barred}
        return capability_words(missing, version("motet"), understood(), workers)


def delayed(widths: Sequence[Width], more: Sequence[int]) -> list[Width]:
    """The widths with as many seconds more on each node; `more` may be empty."""
    if not more:
        return list(widths)
    return [
        replace(width, seconds=tuple(None if s is None else s + m for s, m in zip(width.seconds, more, strict=True)))
        for width in widths
    ]


def _host(node: Node, trouble: Trouble | None, busy: bool) -> Host:
    given = CAPABILITIES_0_1 if node.capabilities is None else frozenset(node.capabilities)
    tried = trouble is not None and trouble.probing
    bar = None if trouble is None or tried or trouble.status == "stopping" else _BARS[trouble.status]  # as if drained
    return Host(node.id, node.boot_id, given, len(node.losing), bar, tried, busy)
