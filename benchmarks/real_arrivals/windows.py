"""Windows of a trace whose arrivals are scaled until the fleet is as loaded as asked. Knows no policy.

A window is a run of consecutive submissions. Even windows may be used to choose a planner's rules, odd ones are only reported.
"""

from dataclasses import dataclass, replace

from benchmarks.simulator.arrivals import TRACES, Arrival, rolling, trace

GPUS = 64
LOADS = (0.9, 1.5, 2.5)


@dataclass(frozen=True)
class Source:
    """A trace file and how it is cut: `parts` windows, evenly spread over the trace, of at most `length` tasks each, and each
    of them `seeds` times, with other draws of what the estimates miss the truth by."""

    file: str | None  # None: the synthetic load, one seed per window
    parts: int
    length: int
    seeds: int = 1

    @property
    def count(self) -> int:
        return self.parts * self.seeds


SOURCES = {
    "philly": Source("philly_week", 6, 300),
    "muri": Source("muri_philly_vc3", 4, 160),
    "acme": Source("acme_kalos", 4, 79, seeds=3),
    "synthetic": Source(None, 4, 300),
}
REAL = ("philly", "muri", "acme")


def window_of(source: str, load: float, at: int) -> list[Arrival]:
    """Window number `at` of `SOURCES[source].count`. `load`: true GPU seconds that arrive per second, over the fleet's GPUs."""
    cut = SOURCES[source]
    if cut.file is None:
        return rolling(cut.length, GPUS, load, 400 + at)
    tasks = trace(TRACES / f"{cut.file}.csv.gz", seed=at)
    part = at % cut.parts
    first = part * len(tasks) // cut.parts
    last = min(first + cut.length, (part + 1) * len(tasks) // cut.parts)
    return loaded(tasks[first:last], load)


def loaded(tasks: list[Arrival], load: float) -> list[Arrival]:
    """The same tasks with arrivals from 0, stretched or compressed evenly to this load on `GPUS`."""
    begin, end = tasks[0].at, max(task.at for task in tasks)
    work = sum(task.true * task.gpus for task in tasks)
    scale = work / (GPUS * load) / max(1, end - begin)
    return [replace(task, at=round((task.at - begin) * scale)) for task in tasks]


def chooses(at: int) -> bool:
    """Whether window `at` belongs to the half that may choose."""
    return at % 2 == 0
