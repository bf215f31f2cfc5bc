"""Watches the other ranks of a sharded base: a thread beside the loop, which may be blocked in a pass that needs them. Knows no
tasks."""

import threading
import time
from collections.abc import Callable, Sequence

from worker.model.sharding.weight_shards import WeightShards
from worker.replicas.ranks.rank_process import RankProcess, check_running

_LOOK_SECONDS = 1.0


class RankWatch:
    """on_silence: called during passes, with the seconds since the last one began here; raises where no placement may wait any
    more.

    Then, or where a rank has ended, all ranks are killed, which fails gloo's gathers in this process. A gather of NCCL does not
    return, so the error is raised here too, and ends the process (thread_guard.py).
    """

    def __init__(self, shards: WeightShards, ranks: Sequence[RankProcess], on_silence: Callable[[float], None]) -> None:
        self._shards, self._ranks, self._on_silence = shards, ranks, on_silence
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rank watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            try:
                self._look(self._shards.busy_since)
            except BaseException:
                for rank in self._ranks:
                    rank.kill()
                raise

    def _look(self, busy_since: float | None) -> None:
        if busy_since is not None:
            self._on_silence(time.monotonic() - busy_since)
        check_running(self._ranks)
