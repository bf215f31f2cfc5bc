"""CPU time and memory of programs and their descendants, from Linux' /proc. Knows no load."""

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

_TICK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class Spent:
    """CPU time since construction. `pids`: programs by name; this process is `load`, without its children. An ended process
    counts once its parent has waited for it."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = self._now()

    def seconds(self) -> dict[str, float]:
        """User and system time, by program."""
        return {name: round(now - self._before[name], 2) for name, now in self._now().items()}

    def _now(self) -> dict[str, float]:
        parents, used = _processes()
        sums = {name: sum(used.get(one, 0.0) for one in _family(pid, parents)) for name, pid in self._pids.items()}
        return sums | {"load": time.process_time()}


def stolen_seconds() -> float:
    """Seconds that the hypervisor gave to others while this machine's cores had work, over all cores, since boot."""
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8]) / _TICK


def family(pid: int) -> list[int]:
    """A program and all its descendants."""
    return _family(pid, _processes()[0])


def memory_mb(pids: list[int]) -> float:
    """Total MiB of these processes; shared pages count in each, since the kernel takes long to tell them apart."""
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids) * _PAGE / 2**20


def _family(pid: int, parents: Mapping[int, list[int]]) -> list[int]:
    return [pid, *(one for child in parents.get(pid, []) for one in _family(child, parents))]


def _processes() -> tuple[dict[int, list[int]], dict[int, float]]:
    """Children by parent, and seconds by process, including the children that it has waited for."""
    children: dict[int, list[int]] = defaultdict(list)
    used = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        children[int(words[1])].append(int(folder.name))
        used[int(folder.name)] = sum(map(int, words[11:15])) / _TICK
    return children, used
