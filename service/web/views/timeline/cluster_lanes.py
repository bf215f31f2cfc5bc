"""The fleet's timeline: a lane a GPU, what ran, runs and is planned there, in SVG coordinates. Others' tasks have no names.

Past and running blocks come from placements, planned ones from what the plan says of waiting tasks.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from contract.gpu_counts import device_word
from service.fleet.answer_sessions import AS_MEANT
from service.fleet.models import AnswerSession, Node, Placement
from service.scheduler.explain.schedule_view import Waiting
from service.tasks.models import Task
from service.tenants.models import Tenant
from service.web.views.formats import clock
from service.web.views.timeline.time_axis import Break, Tick, TimeAxis

WIDTH, LEFT, LANE, GAP, AXIS = 1000.0, 150.0, 20.0, 6.0, 24.0
_PAST = timedelta(hours=1)
_LEAST_AHEAD, _MOST_AHEAD = timedelta(minutes=20), timedelta(days=7)
_COLOURS = 7
_WIDE = re.compile("[A-Zmw]")  # twelve pixels at most at the style sheet's size, other characters of a name eight
_MOST = 2000  # blocks


@dataclass(frozen=True)
class Block:
    """`task_id` and `name` are None for another tenant's task. `colour` is a class of the style sheet."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    planned: bool
    task_id: str | None
    name: str | None
    title: str


@dataclass
class Lane:
    """`words` stand left of its bars. A node's name that is too long for that has a line of its own, above the node's lanes."""

    words: str
    y: float
    height: float
    first: bool  # of its node


@dataclass
class LaneChart:
    height: float = AXIS
    now: float = 0.0
    lanes: list[Lane] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    tenants: dict[str, str] = field(default_factory=dict)  # colour by tenant's name, for the legend
    answering: bool = False  # whether a base was held for who asks it


@dataclass(frozen=True)
class _Run:
    placement: Placement
    task: Task
    tenant: str


def timeline(session: Session, viewer: str | None, waiting: Sequence[Waiting], now: datetime) -> LaneChart:
    """The timeline for a tenant, or with every task named (None), nodes without a block last. The session must see all
    tenants' rows."""
    nodes = list(session.scalars(select(Node).where(Node.removed_at.is_(None)).order_by(Node.name)))
    rows = session.execute(
        select(Placement, Task, Tenant.name)
        .join(Task, Task.id == Placement.task_id)
        .join(Tenant, Tenant.id == Task.tenant_id)
        .where(or_(Placement.ended_at.is_(None), Placement.ended_at > now - _PAST))
        .order_by(Placement.created_at.desc())
        .limit(_MOST)
    )
    asked = select(AnswerSession).where(or_(AnswerSession.ended_at.is_(None), AnswerSession.ended_at > now - _PAST))
    sessions = session.scalars(asked.order_by(AnswerSession.created_at.desc()).limit(_MOST)).all()
    runs: dict[str, list[_Run]] = defaultdict(list)
    for placement, task, tenant in rows:
        runs[placement.node_id].append(_Run(placement, task, tenant))
    return _Drawing(viewer, waiting, _owners(session, waiting), now, nodes, runs, sessions).made


def _owners(session: Session, waiting: Sequence[Waiting]) -> dict[str, tuple[str, str]]:
    """The tenants of the waiting tasks that are named, as id and name by task."""
    ids = [one.task_id for one in waiting if one.task_id is not None]
    rows = select(Task.id, Tenant.id, Tenant.name).join(Tenant, Tenant.id == Task.tenant_id).where(Task.id.in_(ids))
    return {task: (id, name) for task, id, name in session.execute(rows)} if ids else {}


class _Drawing:
    def __init__(
        self,
        viewer: str | None,
        waiting: Sequence[Waiting],
        owners: Mapping[str, tuple[str, str]],
        now: datetime,
        nodes: list[Node],
        runs: Mapping[str, list[_Run]],
        sessions: Sequence[AnswerSession],
    ) -> None:
        self._viewer, self._owners, self._now, self.made = viewer, owners, now, LaneChart()
        every = [run for of_node in runs.values() for run in of_node]
        waiting = [one for one in waiting if one.expected_start is not None and one.expected_start < now + _MOST_AHEAD]
        self._colours = self._colour(every)
        placements = [run.placement for run in every]
        moments = [at for one in placements for at in (one.created_at, one.ended_at or one.expected_end)]
        moments += [at for one in waiting for at in (one.expected_start, one.expected_end)]
        known = [at for at in moments if at is not None]
        end = min(now + _MOST_AHEAD, max([now + _LEAST_AHEAD, *known]))
        self._axis = TimeAxis(LEFT, WIDTH, now, now - _PAST, end, known)
        planned: dict[str, list[Waiting]] = defaultdict(list)
        for one in waiting:
            if one.node is not None and one.expected_end is not None:
                planned[one.node].append(one)
        self._sessions = sessions
        if sessions:
            self.made.answering = True
        y, asked = AXIS, {one.node_id for one in sessions}
        for node in sorted(nodes, key=lambda node: not (node.id in runs or node.name in planned or node.id in asked)):
            y = self._node(node, runs.get(node.id, []), planned.get(node.name, []), y)
        self.made.height, self.made.now = y + GAP, self._axis.x(now)
        self.made.ticks, self.made.breaks = self._axis.ticks(), self._axis.breaks

    def _colour(self, runs: Sequence[_Run]) -> dict[str, str]:
        """A colour for each tenant that may be told apart: all of them for an admin, one's own otherwise."""
        if self._viewer is not None:
            self.made.tenants = {"yours": "t0", "others'": "others"}
            return {self._viewer: "t0"}
        tenants = {*((run.task.tenant_id, run.tenant) for run in runs), *self._owners.values()}
        names = sorted(tenants, key=lambda one: one[1])
        self.made.tenants = {name: f"t{at % _COLOURS}" for at, (_, name) in enumerate(names)}
        return {id: f"t{at % _COLOURS}" for at, (id, _) in enumerate(names)}

    def _node(self, node: Node, runs: Sequence[_Run], planned: Sequence[Waiting], y: float) -> float:
        first, short = True, _width(f"{node.name} · {len(node.devices)}") <= LEFT
        word = device_word([node.device_type])
        if not short:
            self.made.lanes.append(Lane(node.name, y, LANE, True))
            y, first = y + LANE + 2, False
        for device in range(len(node.devices)):
            mine = sorted(
                (run for run in runs if device in run.placement.device_indexes), key=lambda run: run.placement.created_at
            )
            rows = _stacked([(run.placement.created_at, run.placement.ended_at or self._axis.end) for run in mine])
            for asked in self._sessions:
                if (asked.node_id, asked.device_index) == (node.id, device):
                    self._answers(asked, y)
            height = LANE * (1 + max(rows, default=0))
            number = f" · {device}" if len(node.devices) > 1 else ""
            self.made.lanes.append(Lane(node.name + number if short else f"{word} {device}", y, height, first))
            for run, row in zip(mine, rows, strict=True):
                beside = [one for one in mine if one is not run and _overlap(one.placement, run.placement)]
                self._run(run, beside, word, y + LANE * row)
            y, first = y + height + 2, False
        if planned:
            rows = _stacked([(one.expected_start, one.expected_end) for one in planned])  # type: ignore[misc]
            height = LANE * (1 + max(rows, default=0))
            self.made.lanes.append(Lane("planned", y, height, False))
            for one, row in zip(planned, rows, strict=True):
                self._planned(one, y + LANE * row)
            y += height + 2
        return y + GAP

    def _name(self, run: _Run) -> str:
        return run.task.name or run.task.id if self._viewer in (None, run.task.tenant_id) else "another tenant's task"

    def _run(self, run: _Run, beside: Sequence[_Run], word: str, y: float) -> None:
        """`beside`: those that ran or run on the same GPU meanwhile; their jobs train in the same steps. `word`: what the
        GPU is called."""
        placement, task = run.placement, run.task
        named = self._viewer in (None, task.tenant_id)
        end = placement.ended_at or placement.expected_end or self._now
        words = [self._name(run), f"since {clock(placement.created_at)}"]
        if self._viewer is None:
            words.insert(1, f"of {run.tenant}")
        words.append(f"ended: {placement.end_reason}" if placement.ended_at else f"ends {clock(placement.expected_end)}")
        if beside:
            verb = "shared" if placement.ended_at else "shares"
            words.append(f"{verb} this {word} with {', '.join(sorted({self._name(one) for one in beside}))}")
        colour = self._colours.get(task.tenant_id, "others")
        self._block(
            placement.created_at,
            max(end, self._now) if placement.ended_at is None else end,
            y,
            colour,
            False,
            task.id if named else None,
            task.name if named else None,
            words,
        )

    def _answers(self, asked: AnswerSession, y: float) -> None:
        """A base that is, or was, held for who asks it: no tenant is named, since all of them may ask."""
        words = ["answers requests", f"base {asked.base_model} in {asked.precision}", f"since {clock(asked.created_at)}"]
        if asked.ended_at is None:
            words.append("a task takes its place at once")
        elif self._viewer is None or asked.end_reason in AS_MEANT:
            words.append(f"ended: {asked.end_reason}")
        self._block(asked.created_at, asked.ended_at or self._now, y, "answers", False, None, None, words)

    def _planned(self, one: Waiting, y: float) -> None:
        assert one.expected_start is not None
        assert one.expected_end is not None
        words = [
            one.name or one.task_id or "another tenant's task",
            f"starts {clock(one.expected_start)}",
            f"ends {clock(one.expected_end)}",
        ]
        if one.sentence:
            words.append(one.sentence)
        owner = self._owners.get(one.task_id or "", ("", ""))[0]
        colour = self._colours.get(owner, "others")
        self._block(one.expected_start, one.expected_end, y, colour, True, one.task_id, one.name, words)

    def _block(
        self,
        start: datetime,
        end: datetime,
        y: float,
        colour: str,
        planned: bool,
        task_id: str | None,
        name: str | None,
        words: Sequence[str],
    ) -> None:
        x = self._axis.x(start)
        width = max(2.0, self._axis.x(end) - x)
        self.made.blocks.append(Block(x, y + 1, round(width, 1), LANE - 2, colour, planned, task_id, name, "\n".join(words)))


def _width(words: str) -> float:
    """At most what they take, from where lanes begin; proportional letters differ between browsers' fonts."""
    return 6 + 8 * len(words) + 4 * len(_WIDE.findall(words))


def _overlap(one: Placement, other: Placement) -> bool:
    """Whether both were on a node at the same time."""
    return (other.ended_at is None or one.created_at < other.ended_at) and (
        one.ended_at is None or other.created_at < one.ended_at
    )


def _stacked(spans: Sequence[tuple[datetime, datetime]]) -> list[int]:
    """A row for each span, in order of their starts, so that spans of one row do not overlap."""
    ends: list[datetime] = []
    found = []
    for start, end in spans:
        row = next((row for row, until in enumerate(ends) if until <= start), len(ends))
        ends[row : row + 1] = [end]
        found.append(row)
    return found
