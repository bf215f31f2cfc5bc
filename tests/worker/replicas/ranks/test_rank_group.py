"""The ranks of an executor, started and ended."""

import threading

from worker.replicas.ranks.rank_group import RankGroup

MEANWHILE = 0.5  # seconds that another thread has, at most


class Rank:
    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_two_threads_that_end_them_at_once_end_each_once() -> None:
    """The loop at its end, and the preparation whose load fails for it, which comes just after the loop has seen that there is
    one left."""
    group, rank = RankGroup(lambda seconds: None), Rank()
    other = threading.Thread(target=group.close)

    class Ranks(list[Rank]):
        def __len__(self) -> int:
            there = super().__len__()
            if threading.current_thread() is not other and not other.ident:
                other.start()
                other.join(MEANWHILE)
            return there

    group._ranks = Ranks([rank])  # type: ignore[assignment]
    group.close()
    other.join()
    assert rank.closed == 1
