"""Discrete-event simulation of executors that tasks share: arrivals, starts, joins, ends, and a plan after each change.

A simpler fleet than `benchmarks.simulator.engine`: no drains or widths. Each plan is checked before it is followed.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from benchmarks.sharing_sim.step_times import Part, believed, speeds
from benchmarks.simulator.arrivals import NODE_GPUS, Arrival
from benchmarks.simulator.plan_checker import BadPlan, check
from benchmarks.simulator.run_record import RESUME_SECONDS
from service.scheduler.core.decision import Decision, Join, ShortPreemption
from service.scheduler.core.expected_arrivals import RECENT
from service.scheduler.core.joins.joining import settled
from service.scheduler.core.joins.slowdowns import Member, ends
from service.scheduler.core.preemption.shortest_remaining import shorter_first
from service.scheduler.core.problem import (
    Arrived,
    PlanNode,
    Preemptible,
    Queued,
    RunningExecutor,
    SchedulingProblem,
    Start,
)

PRIOR = 0.3  # expected duration over the worst case; true ones are 0.2 to 0.4 of it
COALESCE = 60  # seconds between plans
JOINING = 1.0  # seconds of a joiner's work that its attach takes
_WEIGHT = 100  # of a task of priority 1

Policy = Callable[[SchedulingProblem], Decision]


@dataclass
class _There:
    """A task on an executor: seconds left alone, of its true duration."""

    task: Arrival
    left: float
    bound: float
    speed: float = 1.0


@dataclass
class _Executor:
    node: str
    gpus: int
    members: dict[str, _There] = field(default_factory=dict)  # the longest there first
    at: float = 0.0

    def pass_time(self, moment: float) -> None:
        for there in self.members.values():
            there.left -= there.speed * (moment - self.at)
        self.at = moment

    def reckon(self) -> None:
        """Work out the speeds of those who are there."""
        parts = [Part(one.task.tenant, one.task.batch_size, one.task.gpus, one.bound) for one in self.members.values()]
        for there, speed in zip(self.members.values(), speeds(parts, self.gpus) if parts else (), strict=True):
            there.speed = speed

    def next_end(self) -> float:
        return self.at + min(max(0.0, there.left) / there.speed for there in self.members.values())


@dataclass
class Replayed:
    """A replay's results: each task's end, the largest slowdown beside others against alone, and counts."""

    ended: dict[str, float] = field(default_factory=dict)
    beside: dict[str, float] = field(default_factory=dict)  # running time over its own duration
    joins: int = 0
    preempted: int = 0
    plans: int = 0
    checked: int = 0


def bases_of(tasks: Sequence[Arrival], count: int, seed: int) -> dict[str, str]:
    """A base for each task, of so many, by Zipf's law: traces carry none."""
    draw, odds = Random(1000 + seed), [1 / rank for rank in range(1, count + 1)]
    return {task.id: f"base-{draw.choices(range(count), odds)[0]}" for task in tasks}


class Fleet:
    """One replay of `tasks` under a policy on `gpus` GPUs of nodes of 8. leave: seconds until a task that is preempted for a
    shorter one has left its GPUs; None: none is."""

    def __init__(
        self,
        tasks: Sequence[Arrival],
        bases: dict[str, str],
        policy: Policy,
        bound: float,
        gpus: int,
        share: bool = True,
        leave: int | None = None,
    ) -> None:
        self._tasks = {task.id: task for task in tasks}
        self._arrivals = sorted(tasks, key=lambda task: task.at)
        self._policy, self._share, self._leave = policy, share, leave
        self._sharing = {task.id: believed(task, bases[task.id], bound) for task in tasks}
        self._nodes = tuple(PlanNode(f"node-{at:02}", NODE_GPUS) for at in range(gpus // NODE_GPUS))
        self._executors: dict[str, _Executor] = {}  # by the name of its first task
        self._waiting: dict[str, Arrival] = {}
        self._planned: dict[str, str] = {}
        self._began: dict[str, float] = {}
        self._left = {task.id: float(task.true) for task in tasks}  # of those that wait
        self._ran = dict.fromkeys(self._tasks, 0.0)  # before the present start
        self._now = 0.0
        self.result = Replayed()

    def replay(self) -> Replayed:
        """Raises BadPlan where a plan breaks a rule."""
        coming = [(float(task.at), task.id) for task in self._arrivals]
        heapq.heapify(coming)
        while coming or self._executors:
            end = min((executor.next_end() for executor in self._executors.values()), default=float("inf"))
            first = min(end, coming[0][0] if coming else float("inf"))
            until = max(self._now, first) + COALESCE
            self._pass(coming, until)
            if self._waiting:
                self._plan()
        return self.result

    def _pass(self, coming: list[tuple[float, str]], until: float) -> None:
        """All ends and arrivals up to `until`."""
        while True:
            ends_ = [(executor.next_end(), name) for name, executor in self._executors.items()]
            end, name = min(ends_, default=(float("inf"), ""))
            if end > until:
                break
            self._end(name, end)
        while coming and coming[0][0] <= until:
            _, name = heapq.heappop(coming)
            self._waiting[name] = self._tasks[name]
        self._now = until

    def _end(self, name: str, moment: float) -> None:
        executor = self._executors[name]
        executor.pass_time(moment)
        for id in [id for id, there in executor.members.items() if there.left <= 1e-6 * max(1, there.task.true)]:
            task = executor.members.pop(id).task
            self.result.ended[id] = moment
            self.result.beside[id] = (self._ran[id] + moment - self._began[id]) / task.true
        executor.reckon()
        del self._executors[name]
        if executor.members:
            self._executors[next(iter(executor.members))] = executor

    # ---- a plan ------------------------------------------------------------------------------------------------------

    def _plan(self, preempts: bool = True) -> None:
        problem = self._problem()
        decision = self._policy(problem)
        taken = shorter_first(problem, decision) if preempts else ()
        self.result.plans += 1
        begun = [start for start in decision.starts if start.start == 0]
        later = [start for start in decision.starts if start.start > 0]
        self.result.checked += check(problem, begun) + check(settled(problem, decision), later)
        self._planned = {start.task: start.node for start in decision.starts if start.start > 0}
        for start in begun:
            self._begin(start)
        for join in decision.joins:
            self._join(join)
        self.result.joins += len(decision.joins)
        for one in taken:
            self._preempt(one)
        if taken and self._waiting:
            self._plan(preempts=False)

    def _begin(self, start: Start, delay: float = 0.0) -> None:
        executor = _Executor(start.node, start.gpus, at=self._now)
        self._executors[start.task] = executor
        self._add(executor, start.task, delay)

    def _preempt(self, found: ShortPreemption) -> None:
        """The victims leave and wait, and the task starts in their place."""
        for victim in found.victims:
            executor = self._executors.pop(victim)
            executor.pass_time(self._now)
            (there,) = executor.members.values()
            self._left[victim] = max(0.0, there.left) + RESUME_SECONDS
            self._ran[victim] += self._now - self._began[victim]
            self._waiting[victim] = there.task
            self.result.preempted += 1
        gpus = self._tasks[found.task].gpus
        self._begin(Start(found.task, found.node, 0, found.seconds, gpus), self._leave or 0)

    def _join(self, join: Join) -> None:
        executor, task = self._executors[join.beside], self._tasks[join.task]
        here = {self._sharing[id].group for id in executor.members}
        if here != {self._sharing[task.id].group} or executor.gpus < task.gpus or executor.node != join.node:
            raise BadPlan(f"{join.task} joins {join.beside} of another base, width or node")
        executor.pass_time(self._now)
        self._add(executor, join.task, JOINING)
        if sum(self._sharing[id].room for id in executor.members) > 1 + 1e-6:
            raise BadPlan(f"{join.task} joins {join.beside}, where memory has no room")

    def _add(self, executor: _Executor, name: str, delay: float) -> None:
        task = self._waiting.pop(name)
        executor.members[name] = _There(task, self._left[name] + delay, self._sharing[name].bound)
        self._began[name] = self._now
        executor.reckon()

    def _problem(self) -> SchedulingProblem:
        running = []
        for name, executor in self._executors.items():
            executor.pass_time(self._now)
            members = tuple(
                Member(
                    id,
                    there.task.tenant,
                    self._remaining(there),
                    self._sharing[id],
                    there.task.priority * _WEIGHT,
                    there.task.gpus,
                )
                for id, there in executor.members.items()
            )
            last = max(ends(members, executor.gpus).values())
            running.append(
                RunningExecutor(
                    name, executor.node, executor.gpus, last, members[0].tenant, members, preemptible=self._preemptible(name)
                )
            )
        waiting = sorted(self._waiting.values(), key=lambda task: (task.at, task.id))
        return SchedulingProblem(
            self._nodes, tuple(running), tuple(map(self._queued, waiting)), recent=self._recent(), leave=self._leave
        )

    def _preemptible(self, name: str) -> Preemptible | None:
        if self._leave is None:
            return None
        task, ran = self._tasks[name], round(self._ran[name] + self._now - self._began[name])
        return Preemptible(task.priority * _WEIGHT, round(self._now - task.at), ran, RESUME_SECONDS)

    def _remaining(self, there: _There) -> int:
        return self._expected(there.task, there.left)

    def _expected(self, task: Arrival, left: float) -> int:
        """What is left of the expected duration alone; a task that exceeds it is expected to need a twentieth more."""
        expected, done = task.worst * PRIOR, task.true - left
        return max(1, round(max(expected - done, expected / 20)))

    def _queued(self, task: Arrival) -> Queued:
        many = len(self._nodes)
        seconds = (self._expected(task, self._left[task.id]),) * many
        ran = round(self._ran[task.id])
        waited = round(self._now - task.at) - ran
        sharing = (self._sharing[task.id],) * many if self._share else ()
        weight, planned = task.priority * _WEIGHT, self._planned.get(task.id)
        return Queued(
            task.id,
            task.gpus,
            weight,
            seconds,
            planned,
            task.tenant,
            waited=waited,
            sharing=sharing,
            ran=ran,
            preempts=weight if self._leave is not None else 0,
        )

    def _recent(self) -> tuple[Arrived, ...]:
        seen = [task for task in self._arrivals if task.at <= self._now][-RECENT:]
        return tuple(Arrived(round(self._now - task.at), task.gpus, max(1, round(task.worst * PRIOR))) for task in seen)


def bursts(tasks: Sequence[Arrival], size: int = 20) -> list[Arrival]:
    """The same tasks, arriving in bursts of `size`: each burst at the time of its last task."""
    found = []
    for first in range(0, len(tasks), size):
        some = tasks[first : first + size]
        found += [replace(task, at=max(one.at for one in some)) for task in some]
    return found
