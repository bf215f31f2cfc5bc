"""The steps that replicas take between two meetings: what rank 0 hears of them meanwhile, and how it cuts them short. All end
at the same step.

    a rank: StepsDone now and then, its losses
    rank 0: Pause     to each rank at work, between two of its own steps
    a rank: Paused    between two of its steps, with how many it has begun; it waits
    rank 0: GoOn      to each that waits, with the most that any has begun

A device may be at the last few steps then, which were launched ahead (device_replica.py). A rank that has answered its call
instead counts with the steps that it took: all of them, or fewer where its jobs have ended.
"""

import time
from collections.abc import Callable, Sequence

from worker.replicas.packed_step import Stepped
from worker.replicas.ranks.rank_process import RankProcess

TELL_SECONDS = 1.0  # at least, between two tellings of steps
_LOOK_SECONDS = 0.02  # while rank 0 itself has no job
_MOST_AHEAD = 3.0  # seconds that the furthest may have told of more than the last; a telling may be a second old


class StepWindow:
    """Of `count` steps, or fewer. ranks: those at work. wanted: whether something waits for the replicas to meet; asked between
    two steps. It is cut short for a thread that waits to call one of the ranks, too, where a replica's jobs have all ended, and
    where one is far ahead. tell: takes the next steps that all replicas have taken, each replica's; `told`: how many in all,
    never the last one."""

    def __init__(
        self,
        count: int,
        ranks: Sequence[RankProcess],
        wanted: Callable[[], bool],
        tell: Callable[[Sequence[Sequence[Stepped]]], None],
    ) -> None:
        self._count, self._ranks, self._wanted, self._tell = count, ranks, wanted, tell
        self._cut, self._uneven = count == 1, False
        self.told, self._began = 0, time.monotonic()
        self._told_at = self._began

    def steps_in_all(self, begun: int, taken: Sequence[Stepped] | None) -> int:
        """How many steps the replicas take in all, where the one of rank 0 has begun so many, and has taken these; None: it has
        no job. Raises RankLost, and what on_silence raises."""
        if time.monotonic() - self._told_at >= TELL_SECONDS:
            self._told_at = time.monotonic()
            self._tell_next(taken)
        if not self._cut and (self._uneven or self._wanted() or any(rank.awaited for rank in self._ranks)):
            self._cut = True
            self._cut_short(begun)
        return self._count

    def _tell_next(self, taken: Sequence[Stepped] | None) -> None:
        through = [_steps_of(rank) for rank in self._ranks if rank.answers_within(0)]
        each = [rank.taken for rank in self._ranks] if taken is None else [taken, *(rank.taken for rank in self._ranks)]
        least, most = min(map(len, each)), max(1, *map(len, each), *through)
        ahead = (most - least) / most * (time.monotonic() - self._began)
        self._uneven |= ahead > _MOST_AHEAD or any(steps < self._count for steps in through)
        common = min(least, self._count - 1)
        if common > self.told:
            self._tell([steps[self.told : common] for steps in each])
            self.told = common

    def await_others(self, taken: Sequence[Stepped] | None) -> None:
        """Rank 0's replica has no job left, after these steps; None: it had none. Wait for the others. Raises as
        steps_in_all."""
        begun = len(taken or ())
        if begun >= self._count:
            return  # they are about to end, too
        self._uneven |= taken is not None
        for rank in self._ranks:
            while not self._cut and not rank.answers_within(_LOOK_SECONDS):
                self.steps_in_all(begun, taken)

    def _cut_short(self, begun: int) -> None:
        for rank in self._ranks:
            rank.pause()
        paused = [(rank, rank.paused_after()) for rank in self._ranks]
        self._count = max([begun, *(_steps_of(rank) if steps is None else steps for rank, steps in paused)])
        for rank, steps in paused:
            if steps is not None:
                rank.go_on(self._count)


def _steps_of(rank: RankProcess) -> int:
    """How many a rank has taken that is through with its call."""
    answered = rank.answered
    return len(rank.taken) + (0 if isinstance(answered, Exception) else len(answered[0]))
