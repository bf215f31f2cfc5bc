"""A fake clock and a fake fleet around a policy: arrivals, starts, ends, preemptions, and a replan after each of them.

Knows no policy's inside. Every plan goes through the independent judge before it is followed.
"""

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.simulator.check import check
from benchmarks.simulator.policies import Policy
from benchmarks.simulator.workload import Arrival
from service.scheduler.fair_share import Share, decayed, entered, owed, standing, weight
from service.scheduler.preempt import Claim, Held, preemption
from service.scheduler.problem import Node, Problem, Queued, Running, Start
from service.scheduler.solve import Decision

RELOAD_SECONDS = 60  # what a preempted task loses: its current step, and loading again
_KIND = "gpu"


@dataclass(frozen=True)
class Setup:
    """The fleet and the house rules of a run. `prior` is the part of the worst case that tasks are believed to take."""

    nodes: int
    node_gpus: int = 8
    prior: float = 1.0
    fair: bool = False  # weights by fair share and age; else by priority alone
    bound: float | None = None  # seconds a tenant under its due waits before it takes GPUs back
    half_life: float = 4 * 3600.0
    coalesce: int = 0  # seconds between plans at the least


@dataclass
class Ran:
    """A task and what became of it; `placed` are (node, start, end) of each placement, seconds."""

    task: Arrival
    left: int
    started: int | None = None
    ended: int | None = None
    placed: list[tuple[str, int, int]] = field(default_factory=list)
    queued_at: int = 0


@dataclass
class Outcome:
    """What a run left behind. `moves` and `kept` count planned tasks that did or did not change node between two plans."""

    setup: Setup
    ran: list[Ran]
    plans: int = 0
    checked: int = 0
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    moves: int = 0
    kept: int = 0
    preempted: int = 0
    methods: dict[str, int] = field(default_factory=dict)
    backlogged: dict[str, float] = field(default_factory=dict)  # GPU seconds by tenant while all tenants waited
    backlog_seconds: float = 0.0
    starved: float = 0.0  # the longest time a tenant waited under its due while nothing of it started


@dataclass(frozen=True)
class _Live:
    node: str
    started: int
    end: int
    expected: int


Observer = Callable[[int, Problem, Decision], None]


def simulate(tasks: Sequence[Arrival], policy: Policy, setup: Setup, observe: Observer | None = None) -> Iterator[Outcome]:
    """Run to the end, yielding the outcome so far after every plan; the last one is complete."""
    yield from _Run(tasks, policy, setup, observe).events()


class _Run:
    def __init__(self, tasks: Sequence[Arrival], policy: Policy, setup: Setup, observe: Observer | None) -> None:
        self._policy, self._setup, self._observe = policy, setup, observe
        self._nodes = tuple(Node(f"node-{at:03}", setup.node_gpus) for at in range(setup.nodes))
        self._gpus = setup.nodes * setup.node_gpus
        self._ran = {task.id: Ran(task, task.true, queued_at=task.at) for task in tasks}
        self._tenants = sorted({task.tenant for task in tasks})
        self._use = dict.fromkeys(self._tenants, 0.0)
        self._needy_since: dict[str, int] = {}
        self._waiting: dict[str, Arrival] = {}
        self._live: dict[str, _Live] = {}
        self._planned: dict[str, str] = {}
        self._events: list[tuple[int, int, str]] = [(task.at, 1, task.id) for task in tasks]  # ends (0) before arrivals (1)
        heapq.heapify(self._events)
        self._now = 0
        self.outcome = Outcome(setup, list(self._ran.values()))

    def events(self) -> Iterator[Outcome]:
        while self._events:
            self._advance(max(self._events[0][0], self._now))
            until = self._now + self._setup.coalesce
            changed = False
            while self._events and self._events[0][0] <= until:
                changed |= self._happen(*heapq.heappop(self._events))
            self._advance(until)
            if changed and self._waiting:
                self._preempt()
                self._plan()
                yield self.outcome
        yield self.outcome

    def _happen(self, at: int, kind: int, name: str) -> bool:
        if kind == 1:
            self._waiting[name] = self._ran[name].task
        elif kind == 0:
            live = self._live.get(name)
            if live is None or live.end != at:
                return False  # it was preempted meanwhile
            del self._live[name]
            self._ran[name].ended = at
            self._ran[name].placed.append((live.node, live.started, at))
        return True

    def _advance(self, moment: int) -> None:
        """Count what was held until `moment`."""
        passed = moment - self._now
        if passed > 0:
            held = self._held()
            waiting = {task.tenant for task in self._waiting.values()}
            if len(waiting) == len(self._tenants):
                self.outcome.backlog_seconds += passed
                for tenant in self._tenants:
                    self.outcome.backlogged[tenant] = self.outcome.backlogged.get(tenant, 0) + passed * held[tenant]
            for tenant in self._tenants:
                self._use[tenant] = decayed(self._use[tenant], held[tenant], passed, self._setup.half_life)
        self._now = moment

    def _held(self) -> dict[str, int]:
        held = dict.fromkeys(self._tenants, 0)
        for name in self._live:
            held[self._ran[name].task.tenant] += self._ran[name].task.gpus
        return held

    def _plan(self) -> None:
        problem = self._problem()
        wall, cpu = time.perf_counter(), time.process_time()
        decision = self._policy(problem)
        self.outcome.cpu.append(time.process_time() - cpu)
        self.outcome.wall.append(time.perf_counter() - wall)
        self.outcome.checked += check(problem, decision.starts)
        self.outcome.plans += 1
        self.outcome.methods[decision.method] = self.outcome.methods.get(decision.method, 0) + 1
        if self._observe:
            self._observe(self._now, problem, decision)
        for start in decision.starts:
            before = self._planned.get(start.task)
            if before is not None:
                self.outcome.moves += before != start.node
                self.outcome.kept += before == start.node
        self._planned = {start.task: start.node for start in decision.starts if start.start > 0}
        for start in decision.starts:
            if start.start == 0:
                self._begin(start)

    def _begin(self, start: Start) -> None:
        task = self._waiting.pop(start.task)
        self._needy_since.pop(task.tenant, None)
        ran = self._ran[start.task]
        ran.started = self._now if ran.started is None else ran.started
        end = self._now + ran.left
        self._live[start.task] = _Live(start.node, self._now, end, start.end)
        self._use[task.tenant] = entered(self._use[task.tenant], task.gpus, 300.0, self._setup.half_life)
        heapq.heappush(self._events, (end, 0, start.task))

    def _problem(self) -> Problem:
        weights = self._weights()
        running = tuple(
            Running(name, live.node, self._ran[name].task.gpus, self._remaining(live), self._ran[name].task.tenant)
            for name, live in self._live.items()
        )
        everywhere = len(self._nodes)
        queued = tuple(
            Queued(
                id=task.id,
                gpus=task.gpus,
                weight=weights[task.id],
                seconds=(self._believed(task),) * everywhere,
                planned=self._planned.get(task.id),
                tenant=task.tenant,
            )
            for task in sorted(self._waiting.values(), key=lambda task: (task.at, task.id))
        )
        return Problem(self._nodes, running, queued)

    def _believed(self, task: Arrival) -> int:
        ran = self._ran[task.id]
        return max(1, round(task.worst * self._setup.prior * ran.left / task.true))

    def _remaining(self, live: _Live) -> int:
        """What is left of the belief; a task that outlives it is believed to need a twentieth more."""
        return max(live.expected - (self._now - live.started), live.expected // 20, 1)

    def _weights(self) -> dict[str, int]:
        if not self._setup.fair:
            return {task.id: task.priority * 100 for task in self._waiting.values()}
        stands = standing(self._shares(), {_KIND: self._gpus})
        return {
            task.id: weight(task.priority, stands[task.tenant], self._now - self._ran[task.id].queued_at)
            for task in self._waiting.values()
        }

    def _shares(self) -> list[Share]:
        held = self._held()
        active = {task.tenant for task in self._waiting.values()} | {t for t, gpus in held.items() if gpus}
        return [Share(t, 1.0, {_KIND: held[t]}, {_KIND: self._use[t]}, t in active) for t in self._tenants]

    def _preempt(self) -> None:
        """Give tenants that waited under their due past the bound what they are owed; note the longest such wait."""
        bound = self._setup.bound
        if bound is None:
            return
        due, held = owed(self._shares(), self._gpus), self._held()
        everywhere = frozenset(node.id for node in self._nodes)
        for tenant in self._tenants:
            mine = [task for task in self._waiting.values() if task.tenant == tenant]
            if not any(held[tenant] + task.gpus <= due.get(tenant, 0) for task in mine):
                self._needy_since.pop(tenant, None)
                continue
            since = self._needy_since.setdefault(tenant, self._now)
            self.outcome.starved = max(self.outcome.starved, self._now - since)
            while mine and self._now - since > bound:
                claims = [Claim(t.id, tenant, t.gpus, self._now - since, everywhere) for t in mine]
                found = preemption(claims, self._placements(), self._nodes, due, bound)
                if found is None:
                    break
                self._give(found.claim.task, found.node, found.victims)
                since, mine = self._now, [task for task in mine if task.id != found.claim.task]

    def _give(self, task: str, node: str, victims: Sequence[Held]) -> None:
        for victim in victims:
            live, ran = self._live.pop(victim.task), self._ran[victim.task]
            ran.placed.append((live.node, live.started, self._now))
            ran.left = max(1, ran.left - (self._now - live.started)) + RELOAD_SECONDS
            ran.queued_at = self._now
            self._waiting[victim.task] = ran.task
            self.outcome.preempted += 1
        gpus, seconds = self._ran[task].task.gpus, self._believed(self._ran[task].task)
        self._begin(Start(task, node, 0, seconds, gpus))

    def _placements(self) -> list[Held]:
        return [
            Held(
                name,
                self._ran[name].task.tenant,
                live.node,
                self._ran[name].task.gpus,
                self._ran[name].task.priority,
                self._now - live.started,
            )
            for name, live in self._live.items()
        ]
