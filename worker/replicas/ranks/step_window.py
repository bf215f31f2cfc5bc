"""The steps that replicas take between two meetings, and how rank 0 cuts them short: all end at the same step.

    rank 0: Pause   to each rank at work, between two of its own steps
    a rank: Paused  between two of its steps, with how many it has begun; it waits
    rank 0: GoOn    to each that waits, with the most that any has begun

A device may be at its last two steps then. A rank that has answered its call instead counts with the steps that it took: all of
them, or fewer where its jobs have ended.
"""

from collections.abc import Callable, Sequence

from worker.replicas.ranks.rank_process import RankProcess

_LOOK_SECONDS = 0.02  # while rank 0 itself has no job


class StepWindow:
    """Of `count` steps, or fewer. ranks: those at work. wanted: whether something waits for the replicas to meet; asked between
    two steps. It is cut short for a thread that waits to call one of the ranks, too."""

    def __init__(self, count: int, ranks: Sequence[RankProcess], wanted: Callable[[], bool]) -> None:
        self._count, self._ranks, self._wanted = count, ranks, wanted
        self._cut = count == 1

    def steps_in_all(self, begun: int) -> int:
        """How many steps the replicas take in all, where the one of rank 0 has begun so many. Raises RankLost, and what
        on_silence raises."""
        if not self._cut and (self._wanted() or any(rank.awaited for rank in self._ranks)):
            self._cut = True
            self._cut_short(begun)
        return self._count

    def await_others(self, taken: int) -> None:
        """Rank 0's replica has no job left, after so many steps: wait for the others. Raises as steps_in_all."""
        if taken >= self._count:
            return  # they are about to end, too
        for rank in self._ranks:
            while not self._cut and not rank.answers_within(_LOOK_SECONDS):
                self.steps_in_all(taken)

    def _cut_short(self, begun: int) -> None:
        for rank in self._ranks:
            rank.pause()
        paused = [(rank, rank.paused_after()) for rank in self._ranks]
        self._count = max([begun, *(len(rank.answered[0]) if steps is None else steps for rank, steps in paused)])
        for rank, steps in paused:
            if steps is not None:
                rank.go_on(self._count)
