"""Types for where a job's adapter lies: nowhere yet, arena rows, pinned host memory, disk. tiered_adapter_store.py moves it."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from contract.job_config import JobConfig
from worker.adapters.job_checkpoint import Tensors
from worker.adapters.warm_start import StartAdapter
from worker.model.arena_layout import Layout
from worker.model.plain.trainer import first_weights


@dataclass(frozen=True)
class AdapterSpec:
    """What an adapter is made from when it first gets rows: its shape, its seed, and the adapter to start from."""

    rank: int
    alpha: float  # its product is scaled by alpha / rank
    seed: int
    modules: Collection[str]
    start: StartAdapter | None = None

    @classmethod
    def of(cls, config: JobConfig, start: StartAdapter | None) -> "AdapterSpec":
        return cls(config.rank, config.plain_alpha, config.seed, config.target_modules, start)

    def first_weights(self, layout: Layout, into: Tensor | None = None) -> Tensor:
        """The adapter before its first step, on the host, float32 [rank, W]. into: as of trainer.first_weights."""
        drawn = first_weights(layout, self.rank, self.seed, self.modules, into)
        if self.start is not None:
            self.start.write_onto(drawn, self.alpha / self.rank)
        return drawn


@dataclass(frozen=True)
class Unmade:
    """Nowhere yet: its first weights are drawn when it gets rows, or beside the loop (PinnedHost)."""


@dataclass(frozen=True)
class ArenaRows:
    """Rows of a replica's arena. trains: False where the rows are only kept until another job needs them."""

    replica: int
    trains: bool = True


@dataclass(frozen=True)
class PinnedHost:
    """Main memory, pinned where the arena is on a GPU."""

    tensors: Tensors


@dataclass(frozen=True)
class OnDisk:
    """A file. name: among the store's own, which it removes."""

    path: Path
    name: str


Location = Unmade | ArenaRows | PinnedHost | OnDisk
