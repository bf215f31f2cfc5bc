"""A plan: start everything if it fits; else the better of EASY-WSAP and CP-SAT over a window of the queue.

The same problem gives the same plan: one worker, a budget in CP-SAT's deterministic time, and a wall-clock guard that falls
back to the rules and says so. Knows no database and no clock.
"""

from dataclasses import dataclass
from itertools import pairwise

from ortools.sat.python import cp_model

from service.scheduler.greedy import complete, easy_wsap, start_all, wsap
from service.scheduler.problem import Node, Problem, Queued, Start, objective, violations


@dataclass(frozen=True)
class Budget:
    """How far CP-SAT looks. `deterministic` is its own measure of work, not seconds; `wall` is seconds and only a guard."""

    window: int = 8
    nodes: int = 16
    deterministic: float = 0.1
    wall: float = 5.0


BUDGET = Budget()


@dataclass(frozen=True)
class Decision:
    """A start for every placeable task, and how it came about.

    `objective` and `bound` are over the tasks the solver saw (all of them for method `start`); `status` is CP-SAT's word.
    """

    starts: tuple[Start, ...]
    method: str  # start, greedy or cpsat
    objective: int
    status: str | None = None
    bound: float | None = None
    note: str | None = None


def solve(problem: Problem, budget: Budget = BUDGET) -> Decision:
    """The plan for `problem`. Deterministic unless the wall guard strikes, which `note` then says."""
    at_once = start_all(problem)
    if at_once is not None:
        return Decision(at_once, "start", objective(problem, at_once))
    fallback = easy_wsap(problem)
    window = wsap(problem)[: budget.window]
    seen = _of(fallback, window)
    model = _Model(problem, window, seen, budget)
    found = model.solve()
    if found is None:
        return Decision(fallback, "greedy", objective(problem, seen), model.status, model.bound, model.note)
    planned = complete(problem, found)
    wrong = violations(problem, planned)
    if wrong or objective(problem, planned) > objective(problem, fallback):
        note = "; ".join(wrong) or "the solver's window leaves less for the rest of the queue than the rules do"
        return Decision(fallback, "greedy", objective(problem, seen), model.status, model.bound, note)
    return Decision(planned, "cpsat", objective(problem, found), model.status, model.bound)


def _of(starts: tuple[Start, ...], tasks: list[Queued]) -> tuple[Start, ...]:
    names = {task.id for task in tasks}
    return tuple(start for start in starts if start.task in names)


@dataclass(frozen=True)
class _Option:
    """A task on a node, if `taken`."""

    node: Node
    taken: cp_model.IntVar
    interval: cp_model.IntervalVar
    seconds: int


class _Model:
    """min sum w (start + seconds) + churn; one optional interval for each task and node; a cumulative for each node."""

    def __init__(self, problem: Problem, window: list[Queued], hint: tuple[Start, ...], budget: Budget) -> None:
        self._problem, self._window, self._budget = problem, window, budget
        self._model = cp_model.CpModel()
        self.status = "UNKNOWN"
        self.bound: float | None = None
        self.note: str | None = None
        self._nodes = _nearest(problem, window, hint, budget.nodes)
        longest = sum(max(s for s in task.seconds if s is not None) for task in window)
        horizon = max((task.remaining for task in problem.running), default=0) + longest
        hints = {start.task: start for start in hint}
        self._starts: list[cp_model.IntVar] = []
        self._options: list[list[_Option]] = []
        for task in window:
            self._add(task, hints[task.id], horizon)
        for node in self._nodes:
            self._hold(node)
        self._hold_all()
        self._break_symmetry()
        self._model.minimize(sum(self._cost(at) for at in range(len(window))))

    def solve(self) -> tuple[Start, ...] | None:
        """The starts of the window, or None when there is no answer in time."""
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 1
        solver.parameters.max_deterministic_time = self._budget.deterministic
        solver.parameters.max_time_in_seconds = self._budget.wall
        status = solver.solve(self._model)
        self.status = solver.status_name(status)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.note = "the solver found no plan within its budget"
            return None
        self.bound = solver.best_objective_bound
        if status != cp_model.OPTIMAL and solver.wall_time >= self._budget.wall:
            self.note = f"the wall guard of {self._budget.wall:g} s struck before the deterministic budget was spent"
            return None
        return tuple(self._read(solver, at) for at in range(len(self._window)))

    def _add(self, task: Queued, hint: Start, horizon: int) -> None:
        start = self._model.new_int_var(0, horizon, f"start {task.id}")
        self._model.add_hint(start, hint.start)
        options = []
        for node, seconds in zip(self._problem.nodes, task.seconds, strict=True):
            if seconds is None or node not in self._nodes:
                continue
            taken = self._model.new_bool_var(f"{task.id} on {node.id}")
            self._model.add_hint(taken, node.id == hint.node)
            interval = self._model.new_optional_fixed_size_interval_var(start, seconds, taken, f"{task.id} at {node.id}")
            options.append(_Option(node, taken, interval, seconds))
        self._model.add_exactly_one(option.taken for option in options)
        self._starts.append(start)
        self._options.append(options)

    def _hold(self, node: Node) -> None:
        intervals, demands = self._occupied([node])
        for task, options in zip(self._window, self._options, strict=True):
            for option in options:
                if option.node == node:
                    intervals.append(option.interval)
                    demands.append(task.gpus)
        self._model.add_cumulative(intervals, demands, node.gpus)

    def _hold_all(self) -> None:
        """The redundant cumulative over all nodes, where every task takes equally long on each of them."""
        intervals, demands = self._occupied(self._nodes)
        for task, start, options in zip(self._window, self._starts, self._options, strict=True):
            if len({option.seconds for option in options}) != 1:
                return
            intervals.append(self._model.new_fixed_size_interval_var(start, options[0].seconds, task.id))
            demands.append(task.gpus)
        self._model.add_cumulative(intervals, demands, sum(node.gpus for node in self._nodes))

    def _occupied(self, nodes: list[Node]) -> tuple[list[cp_model.IntervalVar], list[int]]:
        names = {node.id for node in nodes}
        running = [task for task in self._problem.running if task.node in names]
        intervals = [self._model.new_fixed_size_interval_var(0, task.remaining, task.id) for task in running]
        return intervals, [task.gpus for task in running]

    def _break_symmetry(self) -> None:
        """Of empty nodes that no task could tell apart, use them in order."""
        busy = {task.node for task in self._problem.running} | {task.planned for task in self._window}
        alike: dict[tuple[object, ...], list[Node]] = {}
        for at, node in enumerate(self._problem.nodes):
            if node in self._nodes and node.id not in busy:
                alike.setdefault((node.gpus, *(task.seconds[at] for task in self._window)), []).append(node)
        for nodes in alike.values():
            for before, after in pairwise(nodes):
                used: list[cp_model.IntVar] = []
                for options in self._options:
                    by_node = {option.node: option.taken for option in options}
                    if after in by_node:
                        self._model.add(by_node[after] <= sum(used))
                    used += [by_node[before]] if before in by_node else []

    def _cost(self, at: int) -> cp_model.LinearExprT:
        task, options = self._window[at], self._options[at]
        cost = task.weight * (self._starts[at] + sum(option.seconds * option.taken for option in options))
        if task.planned is not None:
            cost += self._problem.churn * (1 - sum(option.taken for option in options if option.node.id == task.planned))
        return cost

    def _read(self, solver: cp_model.CpSolver, at: int) -> Start:
        begin = solver.value(self._starts[at])
        option = next(option for option in self._options[at] if solver.boolean_value(option.taken))
        return Start(self._window[at].id, option.node.id, begin, begin + option.seconds)


def _nearest(problem: Problem, window: list[Queued], hint: tuple[Start, ...], limit: int) -> list[Node]:
    """At most `limit` nodes: those the hint uses (at most one a task), then the freest, then the soonest free."""
    used = {start.node for start in hint}
    taken = {node.id: 0 for node in problem.nodes}
    until = dict(taken)
    for task in problem.running:
        taken[task.node] += task.gpus
        until[task.node] = max(until[task.node], task.remaining)
    fitting = [node for at, node in enumerate(problem.nodes) if any(task.seconds[at] is not None for task in window)]
    fitting.sort(key=lambda node: (node.id not in used, taken[node.id] - node.gpus, until[node.id]))
    return fitting[: max(limit, len(used))]
