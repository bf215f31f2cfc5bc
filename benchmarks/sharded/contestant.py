"""What a contestant is, and where it runs: one rank of several. Knows no implementation."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from benchmarks.sharded.drawn_model import DrawnModel
from benchmarks.sharded.reference import AdapterOutcome
from benchmarks.sharded.workload import ADAPTERS, Workload
from worker.model.sharding.rank_collectives import RankCollectives
from worker.policy.base_sharding import ShardPlan


@dataclass(frozen=True)
class Rank:
    """This process among the ranks; torch's default group is that of `collectives`."""

    number: int
    world: int
    device: torch.device
    collectives: RankCollectives

    @property
    def own_adapters(self) -> list[int]:
        """Those that lie on this rank, where adapters are spread over ranks."""
        share = ADAPTERS // self.world
        return list(range(self.number * share, (self.number + 1) * share))


@dataclass(frozen=True)
class Given:
    """plan: which layers are sharded; None: none. recompute: each layer is computed again in backward."""

    rank: Rank
    model: DrawnModel
    plan: ShardPlan | None
    recompute: bool


class Contestant(ABC):
    """note: what there is to know of how it was run. parts_of_step: how many calls of `step` train all adapters once."""

    note: str = ""
    parts_of_step: int = 1

    def __init__(self, given: Given) -> None:
        self.given = given

    @abstractmethod
    def prepare(self, work: Workload) -> None:
        """Bring rows of this workload to the device; what was prepared before is dropped."""

    @abstractmethod
    def step(self) -> list[float]:
        """Forward, backward and update; returns losses, so the device is done with the passes."""

    @abstractmethod
    def outcomes_of(self, work: Workload) -> Mapping[int, AdapterOutcome]:
        """Of a step by the adapters' first weights, for this rank's own adapters at least."""

    def close(self) -> None:
        """Give back what would stay on the device when the contestant is dropped."""
        return

    def without_gathers(self) -> AbstractContextManager[None]:
        """Within it steps compute on whatever weights are in place; for those that gather by calls of ours."""
        return nullcontext()
