"""A live search that keeps what the service would keep of it: each job's adapter as it was at its best evaluation."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.quality.base_set_pairs import Pair, spec_of
from benchmarks.quality.early_exit_driver import EarlyExitDriver
from benchmarks.quality.recorded_sweep import Sweep
from benchmarks.quality.sweep_training import Ground, Texts, blank, ground_of, train
from contract.task_spec import TaskSpec
from worker.adapters.arena_growth import allocate_slot
from worker.model.arena import AdapterState, Slot
from worker.replicas.base_loader import DeviceBase


@dataclass(frozen=True)
class KeptSearch:
    """adapters: float32 [rank, W] by job."""

    ground: Ground
    sweep: Sweep
    driver: EarlyExitDriver
    adapters: dict[int, Tensor]

    def hold(self, job: int) -> Slot:
        """Attach the job's adapter to the base."""
        trainer, config = self.ground.base.trainer, self.ground.spec.jobs()[job]
        state = AdapterState(self.adapters[job])
        return allocate_slot(trainer, config.rank, config.plain_alpha, lambda slot: trainer.arena.restore(slot, state))[0]


def third_of(pair: Pair, seed: int = 0, small: bool = False, **asked: object) -> TaskSpec:
    """The pair's sweep with every third of its 60 configurations, and what else is asked. small: 9, to try it on a CPU."""
    spec = spec_of(pair, None, seed, small)
    jobs = [config.model_dump(mode="json") for config in spec.jobs()]
    told = spec.model_dump(mode="json", exclude={"search_space"}) | asked
    return TaskSpec.model_validate(told | {"search_space": {"method": "list", "jobs": jobs[:: 1 if small else 3]}})


def search(
    base: DeviceBase, pair: Pair, spec: TaskSpec, seed: int, sets: Path, rows: int | None = None, texts: Texts | None = None
) -> KeptSearch:
    """Search with the product's policy. sets: the folder of the sets; rows: at most, of a set; texts: of a spec whose cut after
    warmup goes by a metric."""
    ground = ground_of(base, spec, pair.set, sets, rows, _go_on)
    sweep = blank(ground, pair.name, "default", seed, _go_on)
    driver = EarlyExitDriver(spec, sweep)
    adapters: dict[int, Tensor] = {}

    def keep(job: int, slot: Slot) -> None:
        entrant = driver.entrants[job]
        if entrant.best_step == entrant.step or entrant.plain_totals is not None:
            adapters[job] = base.trainer.arena.master[slot.used].to("cpu", torch.float32, copy=True)

    train(ground, sweep, driver, {}, _go_on, keep, texts)
    return KeptSearch(ground, sweep, driver, adapters)


def _go_on() -> None:
    """Nothing ends a search early."""
