"""The policies compared: exclusive placement (the rules without joins), ours, and three rivals' rules for sharing.

The rivals see the same problem and run on the same simulated executors; ours and exclusive placement share their rules.

- ours: joins, and running tasks are preempted for much shorter ones, as the service does by default.
- joining, preempting: only the one, or only the other. exclusive: neither.
- mlora: tasks in order of arrival; each joins the first executor of its base whose memory has room, else takes free GPUs
  (mLoRA, as tLoRA 4 describes it).
- tlora: groups are made before they are placed: the most urgent task first, with the partner, running or waiting, that raises
  joint throughput most, while every slowdown stays within the bound; groups are then placed in that order (tLoRA 3.4,
  algorithm 1).
- plora: where GPUs are free, the pack of waiting tasks with the most ranks a second that memory holds (PLoRA 5, DTM with its
  inner problem solved exactly as a ratio); nobody joins what runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from service.scheduler.core.decision import Decision, Join
from service.scheduler.core.joins.joining import joined_plan_by_rules
from service.scheduler.core.joins.slowdowns import Member, Sharing, broken_bounds, ends, roomy, slowdowns
from service.scheduler.core.problem import Queued, RunningExecutor, SchedulingProblem, Start
from service.scheduler.core.rules import by_rule
from service.scheduler.core.timeline import Timeline


def exclusive(problem: SchedulingProblem) -> Decision:
    starts, held = by_rule(problem)
    return Decision(starts, "exclusive", 0, held=held)


def ours(problem: SchedulingProblem) -> Decision:
    return joined_plan_by_rules(problem)


def mlora(problem: SchedulingProblem) -> Decision:
    plan = _RivalPlan(problem)
    for task in problem.placeable:
        run = next((run for run in plan.runs if _same(run, task) and roomy(_with(run, task).members)), None)
        if run is not None:
            plan.join(run, task)
        elif not plan.begin(task):
            break
    return plan.decision("mlora")


def tlora(problem: SchedulingProblem) -> Decision:
    plan = _RivalPlan(problem)
    urgency = {task.id: (task.waited + (task.shortest or 1)) / (task.shortest or 1) for task in problem.placeable}
    order = sorted(problem.placeable, key=lambda task: (-urgency[task.id], _of(task).overhead))
    groups: list[_Group] = [_Group(run, ()) for run in plan.runs]
    for task in order:
        alone = _Group(None, (task,))
        options = [
            (_gain(group, task), at)
            for at, group in enumerate(groups)
            if group.alike(task)
            and not broken_bounds(together := group.members(task), group.gpus, margin=1.0)
            and roomy(together)
        ]
        gain, at = max(options, default=(0.0, -1))
        if gain > 0:
            groups[at] = replace(groups[at], tasks=(*groups[at].tasks, task))
        else:
            groups.append(alone)
    for group in groups:
        first, rest = group.tasks[:1], group.tasks[1:]
        run = group.run
        if run is None:
            if not plan.begin(first[0]):
                continue
            run = plan.runs[-1]
        else:
            rest = group.tasks
        for task in rest:
            run = plan.join(run, task)
    return plan.decision("tlora")


def plora(problem: SchedulingProblem) -> Decision:
    plan = _RivalPlan(problem)
    waiting = list(problem.placeable)
    while waiting:
        packs = [pack for pack in _packs(waiting) if plan.fits(pack[0])]
        if not packs:
            break
        pack = max(packs, key=_ranks_a_second)
        if not plan.begin(pack[0]):
            break
        run = plan.runs[-1]
        for task in pack[1:]:
            run = plan.join(run, task)
        gone = {task.id for task in pack}
        waiting = [task for task in waiting if task.id not in gone]
    return plan.decision("plora")


POLICIES: dict[str, Callable[[SchedulingProblem], Decision]] = {
    "exclusive": exclusive, "preempting": exclusive, "joining": ours, "ours": ours,
    "mlora": mlora, "tlora": tlora, "plora": plora,
}  # fmt: skip
SHARING = ("joining", "ours", "mlora", "tlora", "plora")
PREEMPTING = ("preempting", "ours")


class _RivalPlan:
    """The plan while a rival makes it: who starts on free GPUs and who joins whom."""

    def __init__(self, problem: SchedulingProblem) -> None:
        self._problem, self._timeline = problem, Timeline(problem)
        self.runs = list(problem.running)
        self._starts: list[Start] = []
        self._joins: list[Join] = []

    def fits(self, task: Queued) -> bool:
        return self._timeline.now(task) is not None

    def begin(self, task: Queued) -> bool:
        """Start the task on free GPUs, if there are."""
        start = self._timeline.now(task)
        if start is None:
            return False
        self._starts.append(self._timeline.put(start))
        member = Member(task.id, task.tenant, start.end, _of(task), task.weight, start.gpus)
        self.runs.append(RunningExecutor(task.id, start.node, start.gpus, start.end, task.tenant, (member,)))
        return True

    def join(self, run: RunningExecutor, task: Queued) -> RunningExecutor:
        """The executor once the task has joined it."""
        after = _with(run, task)
        self.runs[self.runs.index(run)] = after
        slow = slowdowns(after.members, after.gpus)
        end, worst = ends(after.members, after.gpus)[task.id], max(slow.values())
        self._joins.append(Join(task.id, run.id, run.node, run.gpus, end, len(run.members), slow[task.id], worst))
        return after

    def decision(self, name: str) -> Decision:
        return Decision(tuple(self._starts), name, 0, joins=tuple(self._joins))


@dataclass(frozen=True)
class _Group:
    """Tasks that are to share: on a running executor, or together on free GPUs."""

    run: RunningExecutor | None
    tasks: tuple[Queued, ...]

    @property
    def gpus(self) -> int:
        return self.run.gpus if self.run is not None else self.tasks[0].gpus

    def alike(self, task: Queued) -> bool:
        return _same(self.run, task) if self.run is not None else _alike(self.tasks[0], task)

    def members(self, more: Queued | None = None) -> tuple[Member, ...]:
        tasks = self.tasks if more is None else (*self.tasks, more)
        return (*(self.run.members if self.run is not None else ()), *map(_member, tasks))


def _gain(group: _Group, task: Queued) -> float:
    """Progress a second that the task adds to the group."""
    before, after = slowdowns(group.members(), group.gpus), slowdowns(group.members(task), group.gpus)
    return sum(1 / slow for slow in after.values()) - sum(1 / slow for slow in before.values())


def _packs(waiting: Sequence[Queued]) -> list[list[Queued]]:
    """The best pack of each base and width: the set with the most ranks a second, among those that memory holds."""
    kinds: dict[tuple[str, int], list[Queued]] = {}
    for task in waiting:
        kinds.setdefault((_of(task).group, task.gpus), []).append(task)
    return [_pack(tasks) for tasks in kinds.values()]


def _pack(tasks: Sequence[Queued]) -> list[Queued]:
    """Ranks a second are sum(r) / (pass + sum(t)): the optimum takes tasks by r / t as long as the quotient rises."""
    order = sorted(tasks, key=lambda task: -_rank(task) / _work(task))
    pack: list[Queued] = []
    for task in order:
        larger = [*pack, task]
        if sum(_of(one).room for one in larger) > 1 or (pack and _ranks_a_second(larger) <= _ranks_a_second(pack)):
            break
        pack = larger
    return pack


def _ranks_a_second(pack: Sequence[Queued]) -> float:
    return sum(map(_rank, pack)) / (1.0 + sum(map(_work, pack)))


def _rank(task: Queued) -> float:
    return float(RANKS.get(task.id, 1))


def _work(task: Queued) -> float:
    """Seconds of the task's tokens in a step, in passes of the base."""
    overhead = _of(task).overhead
    return (1 - overhead) / overhead


RANKS: dict[str, int] = {}  # of the replay's tasks, which PLoRA's objective weighs by


def _of(task: Queued) -> Sharing:
    sharing = task.sharing[0]
    assert sharing is not None  # every task of the replay may share
    return sharing


def _member(task: Queued) -> Member:
    return Member(task.id, task.tenant, task.shortest or 1, _of(task), task.weight, task.gpus)


def _alike(one: Queued, other: Queued) -> bool:
    return (_of(one).group, one.gpus) == (_of(other).group, other.gpus)


def _same(run: RunningExecutor, task: Queued) -> bool:
    return bool(run.members) and run.gpus >= task.gpus and run.members[0].sharing.group == _of(task).group


def _with(run: RunningExecutor, task: Queued) -> RunningExecutor:
    members = (*run.members, _member(task))
    return replace(run, members=members, remaining=max(ends(members, run.gpus).values()))
