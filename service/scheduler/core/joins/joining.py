"""Joins: after the plan has placed what fits on free GPUs, waiting tasks may join running executors of their base.

A task may join where memory has room, every slowdown there stays within its task's bound, nobody there misses a deadline by it,
its tenant's quota allows it, and it ends sooner than by waiting. A join is made if the plan that is made anew around it is
better than the one without it, by weighted completion and by expected slowdown of all tasks, the running ones too. They are
tried in the order of the queue: a task far behind gains most by a join, and would take the place of short ones that start soon.

Placing comes first, since with little to gain tasks that are fused before a GPU is free end later than alone. A task that would
keep the GPUs much longer than those who are there does not join: it would take them from short tasks yet to come. Values only.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from service.scheduler.core.batch_arrangement import plan_by_rules
from service.scheduler.core.decision import BatchPlan, Decision, Join
from service.scheduler.core.joins.slowdowns import Member, broken_bounds, ends, roomy, slowdowns
from service.scheduler.core.plan_objective import missed, objective, slowdown
from service.scheduler.core.problem import NEVER, Queued, RunningExecutor, SchedulingProblem, Start
from service.scheduler.core.rules import ranked

TRIALS, TRIED_TASKS = 24, 2000  # joins tried in a plan: so many, and fewer where more than so many / TRIALS tasks wait
ASKED = 16  # waiting tasks that look for a join at a time, by expected end
NEAREST = 16  # executors of its base and of each width that a task looks at
LONGEST = 2.0  # times the longest there that a joiner may take
JOINING_SECONDS = 1  # until a joiner trains: its rows are read and its adapters drawn beside the loop
PAYS = 0.02  # least part of its time until its end that a joiner must save


@dataclass(frozen=True)
class _JoinOption:
    """A join that is allowed, and roughly the weighted seconds that all gain by it."""

    task: Queued
    join: Join
    gain: float


@dataclass(frozen=True)
class _Plan:
    """A plan while joins are added: the problem once `now` and `joins` are made, and the starts later than 0 around it."""

    problem: SchedulingProblem
    now: tuple[Start, ...]
    later: tuple[Start, ...]
    held: tuple[str, ...]
    joins: tuple[Join, ...] = ()

    def joined_by(self, join: Join) -> "_Plan":
        """The plan made anew around one more join."""
        after = _after(self.problem, [join])
        starts, held = plan_by_rules(after)
        return _Plan(begun(after, starts), self.now + _now(starts), _later(starts), held, (*self.joins, join))

    @property
    def worth(self) -> tuple[float, float]:
        """Weighted seconds until the ends of all tasks, and the sum of their slowdowns, which both are better lower."""
        cost, slow = float(objective(self.problem, self.later)), slowdown(self.problem, self.later)
        for run in self.problem.running:
            found = ends(run.members, run.gpus, run.correction)
            cost += sum(member.weight * found[member.id] for member in run.members)
            slow += sum(found[member.id] / member.remaining for member in run.members)
        return cost, slow


def joined(problem: SchedulingProblem, decision: Decision) -> Decision:
    """`decision` with tasks that wait joining executors, and the later starts of all others planned around them."""
    if not any(task.sharing for task in problem.queued):
        return decision
    after_starts = begun(problem, decision.starts)
    plan = _Plan(after_starts, _now(decision.starts), _later(decision.starts), decision.held)
    trials, refused = max(1, min(TRIALS, TRIED_TASKS // max(1, len(after_starts.queued)))), set[str]()
    while trials > 0 and (options := _options(plan, refused)):
        worth = plan.worth
        for option in options[:trials]:
            trials -= 1
            better = _better(plan, worth, option)
            if better is not None:
                plan = better
                break
            refused.add(option.task.id)
    if not plan.joins:
        return decision
    starts = (*plan.now, *plan.later)  # a task that begins now, and is joined, ends later than its start says
    found = {run.id: ends(run.members, run.gpus, run.correction) for run in plan.problem.running if run.members}
    joins = tuple(replace(join, end=found[join.beside][join.task] + JOINING_SECONDS) for join in plan.joins)
    batches = tuple(_made_anew(problem, batch, starts, found) for batch in decision.batches)
    return replace(decision, starts=starts, held=plan.held, late=missed(problem, starts), joins=joins, batches=batches)


def _made_anew(
    problem: SchedulingProblem, batch: BatchPlan, starts: Sequence[Start], found: Mapping[str, Mapping[str, int]]
) -> BatchPlan:
    """The batch as the plan around the joins has it: by rules, unless it ends when it did. `found`: ends, by executor and
    task."""
    mine = {task.id for task in problem.queued if task.batch == batch.batch}
    last = max((found.get(one.task, {}).get(one.task, one.end) for one in starts if one.task in mine), default=0)
    return batch if last == batch.makespan else BatchPlan(batch.batch, last, "rules")


def _better(plan: _Plan, worth: tuple[float, float], option: _JoinOption) -> _Plan | None:
    """The plan with this join, if it is better for all tasks together."""
    after = plan.joined_by(option.join)
    cost, slow = after.worth
    waited = option.task.waited / (option.task.shortest or 1)  # which a running task's slowdown does not count
    return after if cost < worth[0] and slow + waited <= worth[1] else None


def joined_plan_by_rules(problem: SchedulingProblem) -> Decision:
    """The plan with its joins by rules alone, for answers that cannot wait for CP-SAT."""
    starts, held = plan_by_rules(problem)
    return joined(problem, Decision(starts, "rules", 0, held=held))


def _now(starts: Sequence[Start]) -> tuple[Start, ...]:
    return tuple(start for start in starts if start.start == 0)


def _later(starts: Sequence[Start]) -> tuple[Start, ...]:
    return tuple(start for start in starts if start.start > 0)


def begun(problem: SchedulingProblem, starts: Sequence[Start]) -> SchedulingProblem:
    """The problem once the starts at 0 are made."""
    now = {start.task: start for start in _now(starts)}
    at = {node.id: at for at, node in enumerate(problem.nodes)}
    runs = list(problem.running)
    for task in problem.queued:
        if (start := now.get(task.id)) is not None:
            runs.append(_run(task, start, at[start.node]))
    waiting = tuple(task for task in problem.queued if task.id not in now)
    return replace(problem, running=tuple(runs), queued=waiting, closed=False)


def _run(task: Queued, start: Start, node: int) -> RunningExecutor:
    sharing = task.sharing[node] if task.sharing else None
    run = RunningExecutor(task.id, start.node, start.gpus, start.end, task.tenant)
    if sharing is None:
        return run
    member = Member(task.id, task.tenant, start.end, sharing, task.weight, start.gpus, task.deadline)
    return replace(run, members=(member,))


def _options(plan: _Plan, refused: set[str]) -> list[_JoinOption]:
    """The joins that are allowed now, the best of each task, in the order of the queue."""
    problem, later = plan.problem, {start.task: start for start in plan.later}
    runs, held = {run.id: run for run in problem.running if run.members}, held_units(problem)
    groups = _groups(runs.values())
    able = (task for task in problem.queued if any(task.sharing) and task.batch is None and task.id not in refused)
    waiting = sorted(able, key=lambda task: later[task.id].end if task.id in later else NEVER)[:ASKED]
    queue = sum(task.weight for task in problem.queued) / max(1, sum(node.gpus for node in problem.nodes if not node.drained))
    found = []
    for task in waiting:
        near = {id for one in task.sharing if one is not None for id in groups.get(one.group, ()) if runs[id].gpus >= task.gpus}
        options = (_option(problem, task, runs[id], later.get(task.id), queue, held) for id in sorted(near))
        best = max((one for one in options if one is not None), key=lambda one: one.gain, default=None)
        found += [best] if best is not None else []
    place = {task.id: place for place, task in enumerate(ranked(problem))}  # a task that may only join has none
    return sorted(found, key=lambda one: (place.get(one.task.id, len(place)), -one.gain))


def _groups(runs: Iterable[RunningExecutor]) -> dict[str, list[str]]:
    """By base, the executors that are worth asking: of each width those that slow their members the least."""
    found = defaultdict[tuple[str, int], list[RunningExecutor]](list)
    for run in runs:
        found[run.members[0].sharing.group, run.gpus].append(run)
    groups = defaultdict[str, list[str]](list)
    for (group, _), some in found.items():
        calmest = sorted(some, key=lambda run: max(slowdowns(run.members, run.gpus, run.correction).values()))
        groups[group] += [run.id for run in calmest[:NEAREST]]
    return groups


def _option(
    problem: SchedulingProblem, task: Queued, run: RunningExecutor, later: Start | None, queue: float, held: dict[str, int]
) -> _JoinOption | None:
    """The task's join to this executor, if it is allowed. `queue`: weight of those who wait, for each GPU."""
    place = place_of(problem, run)
    sharing, seconds = task.sharing[place], task.seconds[place]
    if sharing is None or seconds is None or problem.nodes[place].drained or run.gpus < task.on(place):
        return None
    if sharing.group != run.members[0].sharing.group or seconds > LONGEST * max(member.remaining for member in run.members):
        return None
    together = _members(run, task, place)
    if broken_bounds(together, run.gpus, run.correction) or not roomy(together) or not _within_quota(problem, task, run, held):
        return None
    before, after = ends(run.members, run.gpus, run.correction), ends(together, run.gpus, run.correction)
    if any(one.deadline is not None and before[one.id] <= one.deadline < after[one.id] for one in run.members):
        return None
    waits, end = later.end if later is not None else NEVER, after[task.id] + JOINING_SECONDS
    if end >= (1 - PAYS) * waits:
        return None
    lost = sum(member.weight * (after[member.id] - before[member.id]) for member in run.members)
    # GPU seconds that the queue gets, or gives if negative
    freed = seconds * task.on(place) - (max(after.values()) - max(before.values())) * run.gpus
    waited = min(waits, 10 * seconds + end)  # without a start it waits for long, and not forever
    slow = slowdowns(together, run.gpus, run.correction)
    sooner = None if later is None else waits - end
    join = Join(task.id, run.id, run.node, run.gpus, end, len(run.members), slow[task.id], max(slow.values()), sooner)
    return _JoinOption(task, join, task.weight * (waited - end) - lost + queue * freed)


def _members(run: RunningExecutor, task: Queued, place: int) -> tuple[Member, ...]:
    sharing, seconds = task.sharing[place], task.seconds[place]
    assert sharing is not None
    assert seconds is not None  # as _option saw
    return (*run.members, Member(task.id, task.tenant, seconds, sharing, task.weight, task.on(place), task.deadline))


def with_task(run: RunningExecutor, task: Queued, place: int) -> RunningExecutor:
    """The executor once the task is there."""
    members = _members(run, task, place)
    return replace(run, members=members, remaining=max(ends(members, run.gpus, run.correction).values()))


def _after(problem: SchedulingProblem, joins: Sequence[Join]) -> SchedulingProblem:
    """The problem once these joins are made."""
    runs, tasks = {run.id: run for run in problem.running}, {task.id: task for task in problem.queued}
    for join in joins:
        run = runs[join.beside]
        runs[run.id] = with_task(run, tasks[join.task], place_of(problem, run))
    gone = {join.task for join in joins}
    return replace(
        problem, running=tuple(runs.values()), queued=tuple(task for task in problem.queued if task.id not in gone)
    )  # fmt: skip


def settled(problem: SchedulingProblem, decision: Decision) -> SchedulingProblem:
    """The problem once the decision's starts at 0 and its joins are made: what its later starts are planned around. An executor
    may end sooner than without its joiner: tasks of one tenant divide its weight."""
    return _after(begun(problem, decision.starts), decision.joins)


def settled_joins(problem: SchedulingProblem, decision: Decision) -> SchedulingProblem:
    """As `settled`, with the tasks that start at 0 by themselves still in the queue, and without those that joined these."""
    joined_ = {join.task for join in decision.joins}
    joins = [join for join in decision.joins if any(run.id == join.beside for run in problem.running)]
    after = _after(problem, joins)
    return replace(after, queued=tuple(task for task in after.queued if task.id not in joined_))


def place_of(problem: SchedulingProblem, run: RunningExecutor) -> int:
    return next(at for at, node in enumerate(problem.nodes) if node.id == run.node)


# ---- quotas ----------------------------------------------------------------------------------------------------------


def held_units(problem: SchedulingProblem) -> dict[str, int]:
    """Limit units that each tenant holds."""
    held: dict[str, int] = {}
    for run in problem.running:
        for tenant, units in _units(problem, run).items():
            held[tenant] = held.get(tenant, 0) + units
    return held


def _units(problem: SchedulingProblem, run: RunningExecutor) -> dict[str, int]:
    each = problem.units[run.node]
    return {tenant: run.units_of(tenant, each) for tenant in run.tenants}


def _within_quota(problem: SchedulingProblem, task: Queued, run: RunningExecutor, held: dict[str, int]) -> bool:
    limit = next((limit for limit in problem.limits if limit.tenant == task.tenant), None)
    if limit is None:
        return True
    with_it = with_task(run, task, place_of(problem, run))
    each = problem.units[run.node]
    more = with_it.units_of(task.tenant, each) - run.units_of(task.tenant, each)
    return held.get(task.tenant, 0) + more <= limit.units
