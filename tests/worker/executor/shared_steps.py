"""Tasks that share an executor's steps, for tests of who steps when: replicas on which every slice takes the same."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from worker.executor.step_scheduler import StepScheduler
from worker.policy.deficit_round_robin import SliceCost
from worker.policy.job_record import JobKey
from worker.policy.step_time import StepLoad
from worker.replicas.packed_step import Stepped, Work

ALONE = 0.01  # seconds that a slice of any task takes alone


@dataclass
class Costs:
    """Replicas on which every slice takes the same, but for `tokens`."""

    pass_budget: int = 10**6
    count: int = 1
    sharded: bool = False
    launches_ahead: bool = False
    begun: bool = False
    whole: bool = True
    lead: float = 0.0
    tokens: Mapping[str, int] = field(default_factory=dict)  # of slices that have not 100

    def under_way(self, placement: str) -> bool:
        return self.begun

    def next_slice_costs(self, jobs: Any) -> dict[str, SliceCost]:
        sizes = {job: self.tokens.get(job, 100) for job, _ in jobs}
        return {job: SliceCost(ALONE / 100 * size, size) for job, size in sizes.items()}

    def take_whole_steps(self, jobs: Any) -> bool:
        return self.count == 1 and self.whole

    def seconds_alone(self, load: StepLoad) -> float:
        return ALONE / 100 * load.tokens


class Job(str):
    """Hashed and compared as its task's name."""

    reference = None


def run(key: str) -> Any:
    return SimpleNamespace(key=JobKey(key, 0), job=Job(key), step=0, steps_until_due=lambda most: min(most, 120))


def placement(key: str) -> Any:
    return SimpleNamespace(placement_id=key, tenant_id=f"tenant {key}", weight=1.0, max_slowdown=3.0)


UNTOLD: Any = SimpleNamespace(slowed=lambda slowdown: None, worked=lambda *work: None)


class Shared:
    """A scheduler of tasks that all have work; a step of them takes `seconds`."""

    def __init__(self, replicas: int = 1) -> None:
        self.scheduler, self.replicas = StepScheduler(), Costs(count=replicas)

    def steps(self, keys: str, seconds: float, count: int, active: str | None = None, **stepped: Any) -> None:
        here = {key: placement(key) for key in keys}
        for _ in range(count):
            self.scheduler.choose(self.replicas, here, [run(key) for key in active or keys])  # type: ignore[arg-type]
            self.scheduler.record(
                Stepped({}, seconds, work={key: Work(tokens=100) for key in active or keys}, **stepped), lambda _: UNTOLD
            )

    def told(self, keys: str) -> list[float | None]:
        found = [self.scheduler.slowdown(key) for key in keys]
        return [None if one is None else one.times for one in found]

    def beside(self, key: str) -> str:
        """Whom its slowdown was measured beside."""
        slowdown = self.scheduler.slowdown(key)
        assert slowdown is not None
        return "".join(slowdown.beside)
