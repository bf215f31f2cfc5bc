"""Discrete-event simulation of a policy: arrivals, starts, ends, preemptions, drains on a fake fleet, and a replan after each.

Knows no policy's internals. The independent checker sees every plan before the engine follows it.
"""

import heapq
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.simulator.arrivals import Arrival
from benchmarks.simulator.plan_checker import check
from benchmarks.simulator.policies import Policy
from benchmarks.simulator.run_record import Outcome, Ran, Setup
from benchmarks.simulator.tenant_shares import Tenancy, Waiting
from service.scheduler.core.decision import Decision, ShortPreemption
from service.scheduler.core.expected_arrivals import RECENT
from service.scheduler.core.preemption.owed_gpus import Held
from service.scheduler.core.preemption.shortest_remaining import shorter_first
from service.scheduler.core.problem import (
    Arrived,
    PlanNode,
    Preemptible,
    Queued,
    RunningExecutor,
    SchedulingProblem,
    Start,
    Width,
)

_END, _ARRIVAL, _DRAIN, _TIMER = range(4)  # order of events at the same moment


@dataclass(frozen=True)
class _Live:
    node: str
    gpus: int
    started: int
    end: int
    expected: int
    rate: float  # seconds at speed 1 and narrowest width done per second
    trains: int  # since when it trains


Observer = Callable[[int, SchedulingProblem, Decision], None]


def simulate(tasks: Sequence[Arrival], policy: Policy, setup: Setup, observe: Observer | None = None) -> Iterator[Outcome]:
    """Run to the end, yielding the outcome so far after every plan; the last one is complete."""
    yield from _Run(tasks, policy, setup, observe).events()


class _Run:
    def __init__(self, tasks: Sequence[Arrival], policy: Policy, setup: Setup, observe: Observer | None) -> None:
        self._policy, self._setup, self._observe = policy, setup, observe
        self._nodes = [PlanNode(f"node-{at:03}", setup.node_gpus) for at in range(setup.nodes)]
        self._speeds = setup.speeds or (1.0,) * setup.nodes
        self._ran = {task.id: Ran(task, float(task.true), queued_at=task.at) for task in tasks}
        tenants = sorted({task.tenant for task in tasks})
        self._tenancy = Tenancy(tenants, setup.nodes * setup.node_gpus, setup.half_life)
        self._arrivals = sorted(tasks, key=lambda task: task.at)
        self._waiting: dict[str, Arrival] = {}
        self._live: dict[str, _Live] = {}
        self._planned: dict[str, str] = {}
        self._events: list[tuple[int, int, str]] = [(task.at, _ARRIVAL, task.id) for task in tasks]
        self._events += [(at, _DRAIN, f"{node} {drained:d}") for at, node, drained in setup.drains]
        heapq.heapify(self._events)
        self._act = max(0.0, (setup.bound or 0.0) - setup.coalesce - 2)  # early enough to meet the bound
        self._timer = 0
        self._now = 0
        self.outcome = Outcome(setup, list(self._ran.values()), self._tenancy.record)

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
        if kind == _ARRIVAL:
            self._waiting[name] = self._ran[name].task
        elif kind == _DRAIN:
            node, drained = name.split()
            self._nodes[int(node)] = replace(self._nodes[int(node)], drained=drained == "1")
        elif kind == _END:
            live = self._live.get(name)
            if live is None or live.end != at:
                return False  # it was preempted meanwhile
            del self._live[name]
            self._ran[name].ended = at
            self._ran[name].placed.append((live.node, live.started, at))
        return True

    def _advance(self, moment: int) -> None:
        if moment > self._now:
            waiting = {task.tenant for task in self._waiting.values()}
            self._tenancy.pass_time(moment - self._now, self._held(), waiting)
        self._now = moment

    def _held(self) -> dict[str, int]:
        held: dict[str, int] = {}
        for name, live in self._live.items():
            tenant = self._ran[name].task.tenant
            held[tenant] = held.get(tenant, 0) + live.gpus
        return held

    def _plan(self, preempts: bool = True) -> None:
        problem = self._problem()
        wall, cpu = time.perf_counter(), time.process_time()
        decision = self._policy(problem)
        taken = shorter_first(problem, decision) if preempts else ()
        self.outcome.cpu.append(time.process_time() - cpu)
        self.outcome.wall.append(time.perf_counter() - wall)
        self.outcome.checked += check(problem, decision.starts)
        self.outcome.plans += 1
        self.outcome.methods[decision.method] = self.outcome.methods.get(decision.method, 0) + 1
        self.outcome.foretold |= {late.task for late in decision.late}
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
        for one in taken:
            self._take_back(one)
        if taken and self._waiting:
            self._plan(preempts=False)
        self._set_timer()

    def _take_back(self, found: ShortPreemption) -> None:
        """The victims leave, and then the task starts in their place."""
        for victim in found.victims:
            self._give_back(victim)
            self.outcome.for_shorter += 1
        leave = self._setup.leave or 0
        self._begin(Start(found.task, found.node, 0, found.seconds, self._waiting[found.task].gpus), leave)

    def _begin(self, start: Start, delay: int = 0) -> None:
        task = self._waiting.pop(start.task)
        ran = self._ran[start.task]
        ran.started = self._now if ran.started is None else ran.started
        ran.waited += self._now - ran.queued_at
        rate = self._rate(task, int(start.node.rpartition("-")[2]), start.gpus)
        end = self._now + delay + max(1, round(ran.left / rate))
        seconds, trains = delay + start.end - start.start, self._now + delay
        self._live[start.task] = _Live(start.node, start.gpus, self._now, end, seconds, rate, trains)
        self._tenancy.enter(task.tenant, start.gpus)
        heapq.heappush(self._events, (end, _END, start.task))

    def _rate(self, task: Arrival, node: int, gpus: int) -> float:
        return self._speeds[node] * 1.8 ** ((gpus // task.gpus).bit_length() - 1)

    def _problem(self) -> SchedulingProblem:
        waiting = self._queue()
        if self._setup.fair:
            weights = self._tenancy.completion_weights(waiting, self._placements())
        else:
            weights = {each.task.id: each.task.priority * 100 for each in waiting}
        alike = self._comparable(waiting)
        running = tuple(
            RunningExecutor(
                name,
                live.node,
                live.gpus,
                self._remaining(live),
                self._ran[name].task.tenant,
                preemptible=self._preemptible(name, live, alike),
            )
            for name, live in self._live.items()
        )
        queued = tuple(
            replace(self._queued(each, weights[each.task.id]), preempts=alike.get(each.task.id, 0)) for each in waiting
        )
        preempts = self._setup.leave is not None
        dues = self._tenancy.dues(waiting, self._placements()) if preempts and self._setup.fair else ()
        return SchedulingProblem(tuple(self._nodes), running, queued, recent=self._recent(), leave=self._setup.leave, dues=dues)

    def _comparable(self, waiting: Sequence[Waiting]) -> dict[str, int]:
        """Weights of running and waiting tasks beside each other, by task; empty where none is preempted for shorter ones."""
        if self._setup.leave is None:
            return {}
        runs = [
            Waiting(ran.task, self._remaining(live), ran.waited, frozenset())
            for name, live in self._live.items() for ran in (self._ran[name],)
        ]  # fmt: skip
        if self._setup.fair:
            return self._tenancy.comparable_weights(waiting, runs, self._placements())
        return {each.task.id: each.task.priority * 100 for each in (*waiting, *runs)}

    def _preemptible(self, name: str, live: _Live, weights: Mapping[str, int]) -> Preemptible | None:
        if self._setup.leave is None:
            return None
        task, ran = self._ran[name].task, self._trained(name) + max(0, self._now - live.trains)
        deadline = None if task.deadline is None else task.deadline - self._now
        return Preemptible(weights[name], self._now - task.at, ran, self._setup.resume, deadline)

    def _trained(self, name: str) -> int:
        """Seconds that the task ran before its present start."""
        return sum(end - start for _, start, end in self._ran[name].placed)

    def _recent(self) -> tuple[Arrived, ...]:
        """The latest arrivals, oldest first, with the durations expected of them then."""
        seen = bisect_right(self._arrivals, self._now, key=lambda task: task.at)
        prior = self._setup.prior
        return tuple(
            Arrived(self._now - task.at, task.gpus, max(1, round(task.worst * prior)))
            for task in self._arrivals[max(0, seen - RECENT) : seen]
        )

    def _queued(self, each: Waiting, weight: int) -> Queued:
        task = each.task
        wide, most = [task.gpus], min(self._setup.node_gpus, task.max_gpus or task.gpus)
        while self._setup.widths and 2 * wide[-1] <= most:
            wide.append(2 * wide[-1])
        widths = [Width(gpus, self._durations(each, gpus)) for gpus in wide]
        deadline = None if task.deadline is None else task.deadline - self._now
        planned = self._planned.get(task.id)
        wider, waited, ran = tuple(widths[1:]), round(each.waited), self._trained(task.id)
        return Queued(
            task.id, task.gpus, weight, widths[0].seconds, planned, task.tenant, deadline, wider, waited=waited, ran=ran
        )

    def _durations(self, each: Waiting, gpus: int) -> tuple[int, ...]:
        """Expected seconds, by node."""
        if not self._setup.speeds:
            return (max(1, round(each.seconds / self._rate(each.task, 0, gpus))),) * len(self._nodes)
        return tuple(max(1, round(each.seconds / self._rate(each.task, at, gpus))) for at in range(len(self._nodes)))

    def _queue(self) -> list[Waiting]:
        nodes = frozenset(node.id for node in self._nodes if not node.drained)
        return [
            Waiting(task, self._believed(task), self._ran[task.id].waited + self._now - self._ran[task.id].queued_at, nodes)
            for task in sorted(self._waiting.values(), key=lambda task: (task.at, task.id))
        ]

    def _believed(self, task: Arrival) -> float:
        return max(1.0, task.worst * self._setup.prior * self._ran[task.id].left / task.true)

    def _remaining(self, live: _Live) -> int:
        """What is left of the expected duration; a task that exceeds it is expected to need a twentieth more."""
        return max(live.expected - (self._now - live.started), live.expected // 20, 1)

    def _preempt(self) -> None:
        """Take GPUs back for tasks that are within their tenant's share and waited past the bound."""
        if self._setup.bound is None:
            return
        self._tenancy.watch(self._now, self._queue(), self._placements())
        while found := self._tenancy.preempt(self._queue(), self._placements(), self._nodes, self._act):
            for victim in found.victims:
                self._give_back(victim.task)
            task = self._ran[found.preemptor.task].task
            node = int(found.node.rpartition("-")[2])
            seconds = max(1, round(self._believed(task) / self._rate(task, node, task.gpus)))
            self._begin(Start(task.id, found.node, 0, seconds, task.gpus))

    def _give_back(self, name: str) -> None:
        live, ran = self._live.pop(name), self._ran[name]
        ran.placed.append((live.node, live.started, self._now))
        ran.left = max(1.0, ran.left - max(0, self._now - live.trains) * live.rate) + self._setup.resume
        ran.queued_at = self._now
        self._waiting[name] = ran.task
        self.outcome.preempted += 1

    def _set_timer(self) -> None:
        """Wake up when the next preemptor passes the bound, as the service's own timer does."""
        if self._setup.bound is None:
            return
        placed, queue = self._placements(), self._queue()
        self._tenancy.watch(self._now, queue, placed)
        wait = self._tenancy.next_bound(queue, placed, self._act)
        if wait is not None and not self._now < self._timer <= self._now + wait:
            self._timer = self._now + max(1, round(wait + 0.5))
            heapq.heappush(self._events, (self._timer, _TIMER, ""))

    def _placements(self) -> list[Held]:
        nodes = frozenset(node.id for node in self._nodes if not node.drained)
        found = []
        for name, live in self._live.items():
            task = self._ran[name].task
            age = self._now - live.started
            spare = live.gpus - task.gpus
            found.append(Held(name, task.tenant, live.node, live.gpus, task.priority, age, nodes, spare))
        return found
