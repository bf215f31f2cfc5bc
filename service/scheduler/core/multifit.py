"""Closed batches: a short makespan by multifit on a tree of GPU blocks, improved by moves and swaps. Knows no solver.

A node's GPUs form a binary tree of halves. A task on w GPUs (rounded up to a power of two) takes one block of w GPUs and starts
when the tasks below it on those GPUs end; wider tasks start first, so on idle nodes no GPU has gaps and the makespan is the
fullest GPU's load. Multifit as in Coffman, Garey and Johnson (1978). Random kicks are seeded and counted: the same problem
gives the same plan.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from service.scheduler.core.problem import Queued, SchedulingProblem, Start

_HALVINGS = 14  # bisections of multifit's capacity: to 1/16384 of the span between bounds
_KICK = 4  # random swaps to leave a local optimum

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class _Block:
    node: str
    leaves: int


def pack(problem: SchedulingProblem, moves: int = 3000) -> tuple[Start, ...] | None:
    """A start for every placeable task; None where the tree does not apply: node-dependent durations or GPUs, or tenant limits.

    `moves` bounds the search: the number of moves and swaps tried, each in time proportional to the number of tasks.
    """
    nodes = [node for node in problem.nodes if not node.drained]
    tasks = list(problem.placeable)
    if problem.limits or not tasks or any(task.needs for task in tasks):
        return None
    seconds: list[int] = []
    for task in tasks:
        pairs = zip(task.seconds, problem.nodes, strict=True)
        known = {spent for spent, node in pairs if not node.drained and node.gpus >= task.gpus}
        if len(known) != 1 or None in known:
            return None
        seconds += [spent for spent in known if spent is not None]
    blocks = sorted(_blocks([(node.id, node.gpus) for node in nodes]), key=lambda block: -block.leaves)
    if _round_up(max(task.gpus for task in tasks)) > blocks[0].leaves:
        return None  # a task on 6 of 6 GPUs has no block of 8
    tree = _Tree(problem, blocks, tasks, seconds)
    tree.multifit()
    tree.improve(moves)
    return tree.starts()


def _blocks(nodes_gpus: list[tuple[str, int]]) -> Iterator[_Block]:
    """Splits each node into blocks whose sizes are powers of two."""
    for name, gpus in nodes_gpus:
        while gpus:
            yield _Block(name, 1 << (gpus.bit_length() - 1))
            gpus -= 1 << (gpus.bit_length() - 1)


def _round_up(gpus: int) -> int:
    return 1 << (gpus - 1).bit_length()


class _Tree:
    """The assignment of tasks to blocks. Blocks are in descending order of size, so one of w GPUs starts at a multiple of w."""

    def __init__(self, problem: SchedulingProblem, blocks: list[_Block], tasks: list[Queued], seconds: list[int]) -> None:
        self._problem, self._tasks, self._roots = problem, tasks, blocks
        self._ground = self._running(blocks)
        self._seconds: Whole = np.array(seconds, np.int64)
        self._widths = [_round_up(task.gpus) for task in tasks]
        self._levels = sorted(set(self._widths), reverse=True)
        self._members = {w: np.flatnonzero(np.array(self._widths) == w) for w in self._levels}
        self._leaves = {w: sum(block.leaves for block in blocks if block.leaves >= w) for w in self._levels}
        self._at: Whole = np.zeros(len(tasks), np.int64)  # index of each task's block among those of its width
        self._load = self._ground.copy()
        self._on: dict[int, Whole] = {}  # by width: seconds of that width's tasks on each of its blocks

    def multifit(self) -> None:
        """Bisects for the lowest capacity under which best fit decreasing places every task."""
        order = sorted(range(len(self._tasks)), key=lambda at: (-self._widths[at], -self._seconds[at]))
        area = int(self._ground.sum() + sum(w * s for w, s in zip(self._widths, self._seconds, strict=True)))
        low, high = area // len(self._ground), int(self._ground.max() + self._seconds.sum())
        best = self._fit(order, high)
        assert best is not None, "everything fits on one GPU after another"
        high = min(high, 2 * low + int(self._seconds.max()))
        for _ in range(_HALVINGS):
            middle = (low + high) // 2
            found = self._fit(order, middle)
            if found is None:
                low = middle
            else:
                best, high = found, middle
        self._stand(best)

    def improve(self, moves: int) -> None:
        """Local search: lower the fullest GPU's load by moves and swaps; at a local optimum kick, and undo useless kicks."""
        draw = Random(len(self._tasks))
        best, best_at = int(self._load.max()), self._at.copy()
        for _ in range(moves):
            if self._lower():
                continue
            if self._load.max() < best:
                best, best_at = int(self._load.max()), self._at.copy()
            elif self._load.max() > best:
                self._stand(best_at)
            for _ in range(_KICK):
                self._kick(draw)
        if self._load.max() > best:
            self._stand(best_at)

    def starts(self) -> tuple[Start, ...]:
        """Widest first; tasks of equal width in one block by seconds / weight, which minimizes their weighted completion."""
        height, starts = self._ground.copy(), []
        nodes = [block.node for block in self._roots for _ in range(block.leaves)]
        ratio = [seconds / task.weight for seconds, task in zip(self._seconds, self._tasks, strict=True)]
        for at in sorted(range(len(self._tasks)), key=lambda at: (-self._widths[at], ratio[at])):
            task, first, width = self._tasks[at], int(self._at[at]) * self._widths[at], self._widths[at]
            begin = int(height[first : first + width].max())
            end = begin + int(self._seconds[at])
            height[first : first + width] = end
            starts.append(Start(task.id, nodes[first], begin, end, task.gpus))
        return tuple(starts)

    def _running(self, blocks: list[_Block]) -> Whole:
        """The remaining seconds of running tasks, longest first, on each node's GPUs."""
        remains: dict[str, list[int]] = {}
        for task in sorted(self._problem.running, key=lambda task: -task.remaining):
            remains.setdefault(task.node, []).extend([task.remaining] * task.gpus)
        ground = [remains[block.node].pop(0) if remains.get(block.node) else 0 for block in blocks for _ in range(block.leaves)]
        return np.array(ground, np.int64)

    def _tops(self, width: int) -> Whole:
        """The load of the fullest GPU in each block of `width`."""
        tops: Whole = self._load[: self._leaves[width]].reshape(-1, width).max(1)
        return tops

    def _fit(self, order: list[int], capacity: int) -> Whole | None:
        load, at = self._ground.copy(), np.zeros(len(order), np.int64)
        tops: Whole = load
        level = 0
        for task in order:
            width, seconds = self._widths[task], int(self._seconds[task])
            if width != level:
                level, tops = width, load[: self._leaves[width]].reshape(-1, width).max(1)
            block = int(np.where(tops + seconds <= capacity, tops, -1).argmax())
            if tops[block] + seconds > capacity:
                return None
            at[task] = block
            tops[block] += seconds
            load[block * width : (block + 1) * width] += seconds
        return at

    def _stand(self, at: Whole) -> None:
        self._at = at.copy()
        self._load = self._ground.copy()
        for width in self._levels:
            members = self._members[width]
            on = np.bincount(at[members], self._seconds[members], self._leaves[width] // width).astype(np.int64)
            self._on[width] = on
            self._load[: self._leaves[width]] += np.repeat(on, width)

    def _lower(self) -> bool:
        """Apply the exchange that lowers the fullest GPU's load the most; False if none does."""
        leaf = int(self._load.argmax())
        best = int(self._load[leaf])
        chosen: tuple[int, int, int] | None = None  # task, other task or -1, block to move to
        for width in self._levels:
            members = self._members[width]
            block = leaf // width
            tops = self._tops(width)
            for task in members[self._at[members] == block] if leaf < self._leaves[width] else ():
                mine = self._seconds[task]
                worst = tops + mine
                to = int(worst.argmin())
                value = max(int(worst[to]), int(tops[block] - mine))
                if value < best:
                    best, chosen = value, (int(task), -1, to)
                gain = mine - self._seconds[members]
                values = np.maximum(tops[block] - gain, tops[self._at[members]] + gain)
                values[self._at[members] == block] = best
                other = int(values.argmin())
                if values[other] < best:
                    best, chosen = int(values[other]), (int(task), int(members[other]), int(self._at[members[other]]))
        if chosen is None:
            return self._swap_subtrees(leaf)
        task, partner, to = chosen
        back = int(self._at[task])
        self._move(task, to)
        if partner >= 0:
            self._move(partner, back)
        return True

    def _swap_subtrees(self, leaf: int) -> bool:
        """Exchange all narrower tasks of two blocks, if that lowers the fullest GPU's load."""
        for width in self._levels:
            size = width // 2
            if size < 1 or leaf >= self._leaves[width] or not any(w <= size for w in self._levels):
                continue
            whole = self._leaves[width]
            ground = self._ground[:whole].copy()
            for wide in self._levels:
                if wide > size:
                    ground[: min(whole, self._leaves[wide])] += np.repeat(self._on[wide], wide)[:whole]
            base: Whole = ground.reshape(-1, size).max(1)
            own: Whole = self._load[:whole].reshape(-1, size).max(1) - base
            here = leaf // size
            values = np.maximum(base[here] + own, base + own[here])
            values[here] = self._load[leaf]
            there = int(values.argmin())
            if values[there] < self._load[leaf]:
                self._exchange(size, here, there)
                return True
        return False

    def _exchange(self, size: int, here: int, there: int) -> None:
        for width in self._levels:
            if width > size:
                continue
            each = size // width
            for task in self._members[width]:
                block, within = divmod(int(self._at[task]), each)
                if block in (here, there):
                    self._at[task] = (there if block == here else here) * each + within
        self._stand(self._at)

    def _kick(self, draw: Random) -> None:
        members = self._members[draw.choice(self._levels)]
        if len(members) > 1:
            one, other = draw.sample(range(len(members)), 2)
            first, second = int(members[one]), int(members[other])
            to, back = int(self._at[second]), int(self._at[first])
            self._move(first, to)
            self._move(second, back)

    def _move(self, task: int, to: int) -> None:
        width, seconds, back = self._widths[task], self._seconds[task], int(self._at[task])
        for block, change in ((back, -seconds), (to, seconds)):
            self._on[width][block] += change
            self._load[block * width : (block + 1) * width] += change
        self._at[task] = to
