"""How many of the waiting tasks no free GPU can take. Values only: knows no database."""

import bisect
from collections.abc import Mapping, Sequence


def tasks_beyond(waiting: Mapping[int, int], free: Sequence[int]) -> dict[int, int]:
    """By width (GPUs of one node), how many tasks find no room. waiting: tasks by width. free: GPUs of each node.

    The widest go first, each to the node with the fewest free GPUs that are enough (best-fit decreasing).
    """
    rooms = sorted(free)
    beyond = {}
    for width, tasks in sorted(waiting.items(), reverse=True):
        left = tasks
        while left and (at := bisect.bisect_left(rooms, width)) < len(rooms):
            taken = min(left, rooms[at] // width)
            left -= taken
            bisect.insort(rooms, rooms.pop(at) - taken * width)
        beyond[width] = left
    return beyond
