"""CP-SAT model of a window of the queue: one optional interval per task, node and width, one cumulative constraint per node.

Takes tasks and a plan of them as a hint, returns what the solver found. Knows no rules and no tasks beyond the window.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import ceil

from ortools.sat.python import cp_model

from service.scheduler.core.checks.plan_checks import held
from service.scheduler.core.decision import SearchBudget, SearchResult
from service.scheduler.core.problem import LATE_FACTOR, PlanNode, Queued, RunningExecutor, SchedulingProblem, Start


def _whole(bound: float) -> int:
    """Rounds the bound up: the objective is integral. CP-SAT reports a float, which may be slightly above the integer."""
    return ceil(bound - 1e-9 * max(1.0, abs(bound)))


def search(problem: SchedulingProblem, window: list[Queued], hint: tuple[Start, ...], budget: SearchBudget) -> SearchResult:
    """Minimize weighted completion, churn and lateness, from `hint`, which has a start for each task of `window`."""
    model = _Model(problem, window, hint, budget)
    model.minimize_cost()
    return model.solve(budget.deterministic, quick=True)


def polish(
    problem: SchedulingProblem, tasks: list[Queued], hint: tuple[Start, ...], budget: SearchBudget, fixed: Sequence[Start] = ()
) -> SearchResult:
    """Minimize the makespan of `tasks`, of a closed batch on all nodes of `problem`, beside starts that are `fixed`."""
    model = _Model(problem, tasks, hint, budget, fixed)
    model.minimize_makespan()
    return model.solve(budget.polish, quick=False)  # without the LP relaxation 11 tasks on 8 GPUs are proven 10 times sooner


@dataclass(frozen=True)
class _Option:
    """A task on so many GPUs of a node, chosen if `taken` is true."""

    node: PlanNode
    gpus: int
    taken: cp_model.IntVar
    interval: cp_model.IntervalVar
    seconds: int


class _Model:
    """Start and option variables of the window's tasks beside the running tasks; the caller adds the objective."""

    def __init__(
        self,
        problem: SchedulingProblem,
        window: list[Queued],
        hint: tuple[Start, ...],
        budget: SearchBudget,
        fixed: Sequence[Start] = (),
    ) -> None:
        self._problem, self._window, self._budget, self._fixed = problem, window, budget, fixed
        self._tenants = {task.id: task.tenant for task in problem.queued}
        self._model = cp_model.CpModel()
        nodes = len(problem.nodes) if problem.closed else budget.nodes
        self._nodes = nearest(problem, window, hint, nodes)
        self._names = {node.id for node in self._nodes}
        self._hints = {start.task: start for start in hint}
        running = max((task.remaining for task in problem.running), default=0)
        alone = sum(max(s for s in task.seconds if s is not None) for task in window)
        self._horizon = max(running, *(start.end for start in fixed), *(start.end for start in hint), 0) + alone
        self._starts: list[cp_model.IntVar] = []
        self._options: list[list[_Option]] = []
        for task in window:
            self._add(task)
        for node in self._nodes:
            self._hold_node(node)
        self._hold_all()
        self._hold_limits()
        self._break_symmetry()

    def minimize_cost(self) -> None:
        self._model.minimize(sum(self._cost(at) for at in range(len(self._window))))

    def minimize_makespan(self) -> None:
        """Minimize the makespan; its lower bound is the longest running task, and all work divided by all GPUs."""
        area = 0 if self._fixed else sum(task.gpus * task.remaining for task in self._problem.running)
        area += sum(min(option.seconds * option.gpus for option in options) for options in self._options)
        others = [] if self._fixed else [task.remaining for task in self._problem.running]
        least = max([-(-area // sum(node.gpus for node in self._nodes)), *others])
        most = max(least, *(start.end for start in self._hints.values()))
        span = self._model.new_int_var(least, most, "makespan")
        self._model.add_hint(span, most)
        for start, options in zip(self._starts, self._options, strict=True):
            self._model.add(span >= start + sum(option.seconds * option.taken for option in options))
        self._model.minimize(span)

    def solve(self, deterministic: float, quick: bool) -> SearchResult:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        if quick:  # presolving a window costs more than it saves
            solver.parameters.cp_model_probing_level = 0
            solver.parameters.symmetry_level = 0
            solver.parameters.max_presolve_iterations = 1
            solver.parameters.max_number_of_conflicts = self._budget.conflicts
        solver.parameters.linearization_level = int(quick)
        solver.parameters.random_seed = 1
        solver.parameters.max_deterministic_time = deterministic
        solver.parameters.max_time_in_seconds = self._budget.wall
        status = solver.solve(self._model)
        name = solver.status_name(status)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return SearchResult(name, note="the solver found no plan within its budget")
        bound = _whole(solver.best_objective_bound)
        if status != cp_model.OPTIMAL and solver.wall_time >= self._budget.wall:
            note = f"the wall guard of {self._budget.wall:g} s struck before the deterministic budget was spent"
            return SearchResult(name, bound=bound, note=note)
        return SearchResult(name, tuple(self._read(solver, at) for at in range(len(self._window))), bound)

    def _add(self, task: Queued) -> None:
        hint = self._hints[task.id]
        start = self._model.new_int_var(0, self._horizon, f"start {task.id}")
        self._model.add_hint(start, hint.start)
        options = []
        for width in task.widths:
            for at, (node, seconds) in enumerate(zip(self._problem.nodes, width.seconds, strict=True)):
                if seconds is None or node.id not in self._names:
                    continue
                gpus = width.on(at)
                name = f"{task.id} on {gpus} of {node.id}"
                taken = self._model.new_bool_var(name)
                self._model.add_hint(taken, (node.id, gpus) == (hint.node, hint.gpus))
                interval = self._model.new_optional_fixed_size_interval_var(start, seconds, taken, name)
                options.append(_Option(node, gpus, taken, interval, seconds))
        self._model.add_exactly_one(option.taken for option in options)
        self._starts.append(start)
        self._options.append(options)

    def _hold_node(self, node: PlanNode) -> None:
        options = [option for options in self._options for option in options if option.node == node]
        fixed = [start for start in self._fixed if start.node == node.id]
        self._hold(options, [task for task in self._problem.running if task.node == node.id], fixed, node.gpus)

    def _hold_limits(self) -> None:
        for limit in self._problem.limits:
            tasks = zip(self._window, self._options, strict=True)
            options = [option for task, options in tasks if task.tenant == limit.tenant for option in options]
            if options:
                each = self._problem.units
                shares = [replace(run, gpus=run.units_of(limit.tenant, each[run.node])) for run in self._problem.running]
                theirs = [run for run in shares if run.gpus]
                fixed = [start for start in self._fixed if self._tenants[start.task] == limit.tenant]
                self._hold(options, theirs, fixed, limit.units, self._problem.units)

    def _hold(
        self,
        options: list[_Option],
        running: list[RunningExecutor],
        fixed: list[Start],
        most: int,
        units: Mapping[str, int] | None = None,
    ) -> None:
        """Cumulative constraint: at most `most` GPUs at once, or limit units if `units` gives each node's units per GPU. What
        `running` holds is counted so already."""

        def counts(gpus: int, node: str) -> int:
            return gpus if units is None else gpus * units[node]

        taken = [(0, seconds, part) for seconds, part in held(running, most)]
        if fixed:
            taken = capped([*taken, *((start.start, start.end, counts(start.gpus, start.node)) for start in fixed)], most)
        intervals, demands = [option.interval for option in options], [counts(one.gpus, one.node.id) for one in options]
        for begin, end, part in taken:
            intervals.append(self._model.new_fixed_size_interval_var(begin, end - begin, "taken"))
            demands.append(part)
        self._model.add_cumulative(intervals, demands, most)

    def _hold_all(self) -> None:
        """Adds a redundant cumulative over all nodes, if every task has one width and the same duration on every node."""
        if self._fixed:
            return
        taken = []
        for node in self._nodes:
            taken += held([task for task in self._problem.running if task.node == node.id], node.gpus)
        intervals = [self._model.new_fixed_size_interval_var(0, seconds, "running") for seconds, _ in taken]
        demands = [part for _, part in taken]
        for task, start, options in zip(self._window, self._starts, self._options, strict=True):
            if len({(option.seconds, option.gpus) for option in options}) != 1:
                return
            intervals.append(self._model.new_fixed_size_interval_var(start, options[0].seconds, task.id))
            demands.append(options[0].gpus)
        self._model.add_cumulative(intervals, demands, sum(node.gpus for node in self._nodes))

    def _break_symmetry(self) -> None:
        """Symmetry breaking: interchangeable empty nodes are used in order."""
        busy = {task.node for task in self._problem.running} | {task.planned for task in self._window}
        busy |= {start.node for start in self._fixed}
        alike: dict[tuple[object, ...], list[str]] = {}
        for at, node in enumerate(self._problem.nodes):
            if node.id in self._names and node.id not in busy:
                looks = (node.gpus, *((width.seconds[at], width.on(at)) for task in self._window for width in task.widths))
                alike.setdefault(looks, []).append(node.id)
        for names in alike.values():
            for before, after in pairwise(names):
                used: list[cp_model.IntVar] = []
                for options in self._options:
                    later = [option.taken for option in options if option.node.id == after]
                    if later:
                        self._model.add(sum(later) <= sum(used))
                    used += [option.taken for option in options if option.node.id == before]

    def _cost(self, at: int) -> cp_model.LinearExprT:
        task, options = self._window[at], self._options[at]
        end = self._starts[at] + sum(option.seconds * option.taken for option in options)
        cost = task.weight * end
        if task.deadline is not None:
            late = self._model.new_int_var(0, self._horizon, f"late {task.id}")
            self._model.add(late >= end - max(0, task.deadline))
            cost += LATE_FACTOR * task.weight * late
        if task.planned is not None:
            cost += self._problem.churn * (1 - sum(option.taken for option in options if option.node.id == task.planned))
        return cost

    def _read(self, solver: cp_model.CpSolver, at: int) -> Start:
        begin = solver.value(self._starts[at])
        taken = next(option for option in self._options[at] if solver.boolean_value(option.taken))
        return Start(self._window[at].id, taken.node.id, begin, begin + taken.seconds, taken.gpus)


def capped(taken: Sequence[tuple[int, int, int]], most: int) -> list[tuple[int, int, int]]:
    """What (begin, end, GPUs) take together, at most `most`, in parts one after another. On a coarser clock a start begins
    before the one ahead of it ends."""
    changes: dict[int, int] = defaultdict(int)
    for begin, end, gpus in taken:
        changes[begin] += gpus
        changes[end] -= gpus
    moments = sorted(changes)
    sums = accumulate(changes[moment] for moment in moments)
    return [(begin, end, min(most, gpus)) for (begin, end), gpus in zip(pairwise(moments), sums, strict=False) if gpus]


def nearest(problem: SchedulingProblem, window: list[Queued], hint: tuple[Start, ...], limit: int) -> list[PlanNode]:
    """At most `limit` nodes for the model: those in the hint (at most one per task), then the freest, then the soonest free."""
    used = {start.node for start in hint}
    taken = {node.id: 0 for node in problem.nodes}
    until = dict(taken)
    for task in problem.running:
        taken[task.node] += task.gpus
        until[task.node] = max(until[task.node], task.remaining)
    shapes = {width.seconds for task in window for width in task.widths}
    fitting = [n for at, n in enumerate(problem.nodes) if not n.drained and any(seconds[at] is not None for seconds in shapes)]
    fitting.sort(key=lambda node: (node.id not in used, taken[node.id] - node.gpus, until[node.id]))
    return fitting[: max(limit, len(used))]
