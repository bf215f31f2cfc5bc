"""Preempts running tasks for much shorter waiting ones (shortest remaining processing time), after the plan is made.

A waiting task takes GPUs back if all weighted completions together gain by it: what it saves against its planned start exceeds
what its victims lose, which is its whole duration and the switch: leaving, and resuming later. Each victim must have more left
than the preemptor takes in all, so a victim never preempts its preemptor. And nobody starves: a victim's slowdown stays
below the one that its preemptor would have without, so a task that was preempted often is preempted no more.

Nobody takes from another tenant what that one's due covers. The plan is made anew around each preemption, since all others are
planned sooner by it, and may not need one. Values only.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from service.scheduler.core.batch_arrangement import plan_by_rules
from service.scheduler.core.decision import Decision, ShortPreemption
from service.scheduler.core.joins.joining import held_units, settled
from service.scheduler.core.joins.slowdowns import ROUNDING
from service.scheduler.core.problem import (
    NEVER,
    Preemptible,
    Queued,
    RunningExecutor,
    SchedulingProblem,
    Start,
)
from service.scheduler.core.rules import ranked

ASKED = 16  # waiting tasks that look for victims at a time, by rank
MOST, PLANNED_TASKS = 8, 1000  # preemptions in a plan: so many, and fewer where more than so many / MOST tasks wait


@dataclass(frozen=True)
class _Victim:
    """A running task that could be preempted, what it weighs, and its slowdown afterwards."""

    run: RunningExecutor
    loss: float
    slowdown: float


@dataclass(frozen=True)
class _Option:
    preemption: ShortPreemption
    gain: float


def shorter_first(problem: SchedulingProblem, decision: Decision) -> tuple[ShortPreemption, ...]:
    """The preemptions that are due once the decision's starts at 0 and its joins are made; none where `leave` is None."""
    if problem.leave is None or all(run.preemptible is None for run in problem.running):
        return ()
    state, starts = settled(problem, decision), decision.starts
    found, held = list[ShortPreemption](), set(decision.held)
    most = max(1, min(MOST, PLANNED_TASKS // max(1, len(state.queued))))
    while (option := _first(state, problem.leave, starts, held)) is not None:
        found.append(option)
        if len(found) == most:
            break
        state = _after(state, problem.leave, option)
        starts, back = plan_by_rules(state)
        held = set(back)
    return tuple(found)


def around(
    problem: SchedulingProblem, decision: Decision, preemptions: Iterable[ShortPreemption]
) -> tuple[tuple[Start, ...], tuple[str, ...]]:
    """The starts of those who wait once the decision's starts at 0, its joins and these preemptions are made, as the rules plan
    them, with the victims among them; and the tasks held back."""
    state = settled(problem, decision)
    for made in preemptions:
        state = _after(state, problem.leave or 0, made)
    return plan_by_rules(state)


def _first(problem: SchedulingProblem, leave: int, starts: Sequence[Start], held: Iterable[str]) -> ShortPreemption | None:
    """The preemption that gains most for the first task, by rank, that has one."""
    later, skipped = {start.task: start.start for start in starts}, set(held)
    search = _Search(problem, leave)
    able = (task for task in ranked(problem) if task.preempts and task.batch is None and task.id not in skipped)
    for task in [task for task in able if later.get(task.id, NEVER) > 0][:ASKED]:
        options = search.options(task, later.get(task.id, NEVER))
        best = max(options, key=lambda option: option.gain, default=None)
        if best is not None:
            return best.preemption
    return None


class _Search:
    """The running tasks by node, and what tenants hold."""

    def __init__(self, problem: SchedulingProblem, leave: int) -> None:
        self._problem, self._leave = problem, leave
        self._runs: dict[str, list[RunningExecutor]] = defaultdict(list)
        lent: dict[str, float] = defaultdict(float, {tenant: -due for tenant, due in problem.dues})
        worths = {node.id: node.worth for node in problem.nodes}
        for run in problem.running:
            self._runs[run.node].append(run)
            for tenant in run.tenants:
                lent[tenant] += run.gpus * worths[run.node] * run.part_of(tenant)
        self._lent = lent if problem.dues else {}  # what each tenant holds beyond its due
        self._free = {node.id: node.gpus - sum(run.gpus for run in self._runs[node.id]) for node in problem.nodes}
        self._longest = {
            node: max((run.remaining for run in runs if run.preemptible is not None), default=0)
            for node, runs in self._runs.items()
        }
        self._limits = {limit.tenant: limit.units for limit in problem.limits}
        self._units = held_units(problem)

    def options(self, task: Queued, start: int) -> list[_Option]:
        """What each node offers to a task whose planned start is `start`."""
        left = self._limits.get(task.tenant, NEVER) - self._units.get(task.tenant, 0)
        found = []
        for at, (node, seconds) in enumerate(zip(self._problem.nodes, task.seconds, strict=True)):
            if seconds is None or node.drained or task.on(at) * node.units > left:
                continue
            if self._longest.get(node.id, 0) > seconds + self._leave and self._free[node.id] < task.on(at):
                option = self._option(task, at, seconds, start)
                found += [option] if option is not None else []
        return found

    def _option(self, task: Queued, at: int, seconds: int, start: int) -> _Option | None:
        node = self._problem.nodes[at]
        able = [
            _victim(run, run.preemptible, self._leave, seconds)
            for run in self._runs[node.id]
            if run.preemptible is not None and len(run.members) < 2 and run.remaining > seconds + self._leave
        ]
        lent = {tenant: gpus / node.worth for tenant, gpus in self._lent.items() if tenant != task.tenant}
        victims = _fewest([victim for victim in able if victim is not None], task.on(at) - self._free[node.id], lent)
        if not victims:
            return None
        waits = min(start, *(victim.run.remaining for victim in victims))
        without = (task.waited + task.ran + waits + seconds) / (task.ran + seconds)
        gain = task.preempts * (waits - self._leave) - sum(victim.loss for victim in victims)
        if gain <= 0 or any(victim.slowdown >= without for victim in victims):
            return None
        ids = tuple(victim.run.id for victim in victims)
        return _Option(ShortPreemption(task.id, node.id, ids, seconds, waits - self._leave), gain)


def _victim(run: RunningExecutor, cost: Preemptible, leave: int, seconds: int) -> _Victim | None:
    """The task as a victim of a preemptor of `seconds`; None if it would then miss its deadline."""
    pause = leave + seconds + cost.resume
    if cost.deadline is not None and pause + run.remaining > cost.deadline:
        return None
    return _Victim(run, cost.weight * pause, (cost.age + pause + run.remaining) / (cost.ran + run.remaining))


def _fewest(able: Iterable[_Victim], gpus: int, lent: Mapping[str, float]) -> list[_Victim]:
    """Victims that give `gpus` GPUs, those that lose least for each GPU first, longest first; none if they do not suffice.
    Together they give at most `lent` GPUs of each tenant that it names."""
    victims, given, left = list[_Victim](), 0, dict(lent)
    for victim in sorted(able, key=lambda one: (one.loss / one.run.gpus, -one.run.remaining, one.run.id)):
        if given < gpus and victim.run.gpus <= left.get(victim.run.tenant, NEVER) + ROUNDING:
            victims.append(victim)
            given += victim.run.gpus
            if victim.run.tenant in left:
                left[victim.run.tenant] -= victim.run.gpus
    if given < gpus:
        return []
    for victim in sorted(victims, key=lambda one: -one.loss):
        if given - victim.run.gpus >= gpus:
            victims.remove(victim)
            given -= victim.run.gpus
    return victims


def _after(problem: SchedulingProblem, leave: int, made: ShortPreemption) -> SchedulingProblem:
    """The problem once the preemption is made: the victims wait, for their own nodes, with what they have left."""
    runs, back = list[RunningExecutor](), list[Queued]()
    for run in problem.running:
        if run.id in made.victims and run.preemptible is not None:
            cost, left = run.preemptible, run.remaining + run.preemptible.resume
            seconds = tuple(left if node.id == run.node else None for node in problem.nodes)
            waited, deadline = max(0, cost.age - cost.ran), cost.deadline
            back.append(
                Queued(run.id, run.gpus, cost.weight, seconds, run.node, run.tenant, deadline, waited=waited, ran=cost.ran)
            )
        else:
            runs.append(run)
    task = problem.queued[problem.row[made.task]]
    gpus = task.on(problem.places[made.node])
    runs.append(RunningExecutor(task.id, made.node, gpus, leave + made.seconds, task.tenant))
    queued = tuple(one for one in problem.queued if one.id != task.id)
    return replace(problem, running=tuple(runs), queued=(*queued, *back))
