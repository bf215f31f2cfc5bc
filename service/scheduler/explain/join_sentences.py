"""What joining others means for a task, in words for its owner. Values only."""

from contract.gpu_counts import device_word, devices
from service.scheduler.core.decision import Join


def shares_sentence(join: Join, node: str, device_type: str) -> str:
    """Such as: Shares 1 GPU of node a with 3 tasks; 1.4 times slower than alone, ends 40 min sooner than by waiting."""
    gpus = devices(join.gpus, device_word([device_type]))
    tasks = "1 task" if join.among == 1 else f"{join.among} tasks"
    sooner = "" if join.sooner is None else f", ends {roughly(join.sooner)} sooner than by waiting"
    return f"Shares {gpus} of node {node} with {tasks}; {join.slowdown:.1f} times slower than alone{sooner}."


def makes_room(slowdown: float, bound: float, device_type: str) -> str:
    """For the owner of the task that came last to an executor where a bound was broken."""
    shared = f"{device_word([device_type])}s with other tasks"
    return (
        f"It shared {shared}, one of which became {slowdown:.1f} times slower than alone, beyond its bound of {bound:g}: the "
        "task that came last makes room. It goes on from its checkpoint, elsewhere or once there is room."
    )


def runs_alone(losses: int) -> str:
    """For the owner of a task that shares with nobody, since executors were lost while it was there."""
    return f"It runs alone: {losses} executors in a row were lost while it was on them, and none is to take others with it."


def roughly(seconds: float) -> str:
    """A duration in the unit that suits it."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1, round(seconds))} s"
