"""What fetching a base adds to a task on each node: the base's bytes over the rate at which the node fetches. Decides nothing.

Nodes report the fetched bases that they hold, by content. On one that does not report (an older worker) it is even odds
whether the base is there, so half of the download is expected. A base in a folder of every node is nowhere downloaded.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from sqlalchemy import select
from sqlalchemy.orm import Session

from contract.model_revision import content_key
from service.fleet.models import BaseModelFile, Node, Placement
from service.tasks.models import Task

_UNKNOWN = 0.5  # the chance that a base is on a node which does not say


@dataclass(frozen=True)
class BaseDownload:
    """What a node would fetch before it can train."""

    base: str
    bytes: int
    seconds: float


class BaseDownloads:
    """Of the bases that these tasks name. `rate`: bytes per second where no node has measured any."""

    def __init__(self, session: Session, nodes: Mapping[str, Node], tasks: Iterable[Task], rate: float) -> None:
        self._nodes = nodes
        measured = [node.base_rate for node in nodes.values() if node.base_rate is not None]
        usual = median(measured) if measured else rate
        self._rates = {id: node.base_rate or usual for id, node in nodes.items()}
        self._bases = _bases(session, {task.base_model for task in tasks})
        self._added: dict[str, tuple[int, ...]] = {}

    def missing(self, base: str, node: str) -> BaseDownload | None:
        """What this node must fetch; None where it holds the base, or does not say, or nothing is ever fetched."""
        if base not in self._bases or (held := self._nodes[node].bases) is None:
            return None
        key, size = self._bases[base]
        return None if key in held else BaseDownload(base, size, size / self._rates[node])

    def expected(self, base: str) -> tuple[int, ...]:
        """Seconds that each node, in order, would take to fetch the base; empty where nothing is ever fetched."""
        if base not in self._bases:
            return ()
        if base not in self._added:
            self._added[base] = tuple(round(self._expected(base, node)) for node in self._nodes)
        return self._added[base]

    def left(self, placed: Placement, task: Task, now: datetime) -> int:
        """Seconds until a live placement that has taken no step has its base, as far as its node is known to fetch it."""
        found = self.missing(task.base_model, placed.node_id) if placed.steps == 0 else None
        return 0 if found is None else max(0, round(found.seconds - (now - placed.created_at).total_seconds()))

    def _expected(self, base: str, node: str) -> float:
        if self._nodes[node].bases is None:
            return _UNKNOWN * self._bases[base][1] / self._rates[node]
        found = self.missing(base, node)
        return 0.0 if found is None else found.seconds


def _bases(session: Session, names: set[str]) -> dict[str, tuple[str, int]]:
    """Content and bytes of those of these bases that nodes fetch, from the hub or from storage."""
    if not names:
        return {}
    files: dict[str, list[BaseModelFile]] = {}
    for file in session.scalars(select(BaseModelFile).where(BaseModelFile.base_model.in_(names))):
        files.setdefault(file.base_model, []).append(file)
    return {name: (content_key((f.path, f.sha256) for f in held), sum(f.bytes for f in held)) for name, held in files.items()}
