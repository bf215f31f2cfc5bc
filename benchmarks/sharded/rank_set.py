"""The processes of one contestant's ranks: started ahead, so that the next ones import while these run, and killed where one
fails or does not come to an end, so that no contestant ends the run."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from benchmarks.sharded.rank_run import Orders, serve

GRACE_SECONDS = 20.0  # after the deadline, in which a cell that has begun may end


class RankSet:
    def __init__(self, world: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(world):
            ours, its = context.Pipe()
            process = context.Process(target=serve, args=(number, its), daemon=True)
            process.start()
            its.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, orders: Orders) -> Iterator[tuple[str, Any]]:
        """Rank 0's news as they come ("gate", "built", "row"), and at last ("failed", why) where not all ranks came to their
        end; then the set is closed."""
        for pipe in self._pipes:
            with suppress(OSError):  # a rank that has ended already: its news say so
                pipe.send(orders)
        at_work = list(self._pipes)
        while at_work:
            ready = wait(at_work, max(0.0, orders.until + GRACE_SECONDS - time.monotonic()))
            if not ready:
                self.close()
                yield "failed", "it had not ended by the deadline"
                return
            for pipe in [pipe for pipe in at_work if pipe in ready]:
                kind, value = _news(pipe)
                if kind == "port":
                    for other in self._pipes[1:]:
                        other.send(value)
                elif kind == "done":
                    at_work.remove(pipe)
                else:
                    yield kind, value
                if kind == "failed":
                    self.close()
                    return

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()


def _news(pipe: Connection) -> tuple[str, Any]:
    try:
        news: tuple[str, Any] = pipe.recv()
    except EOFError:
        return "failed", "a rank's process ended"
    return news
