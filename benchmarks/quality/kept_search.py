"""A live search that keeps what the service would keep of it: each job's adapter as it was at its best evaluation."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.quality.base_set_pairs import Pair, spec_of
from benchmarks.quality.early_exit_driver import EarlyExitDriver
from benchmarks.quality.recorded_sweep import Sweep
from benchmarks.quality.set_rows import rows_of
from benchmarks.quality.sweep_training import Ground, blank, ground_of, train
from contract.task_spec import TaskSpec
from worker.adapters.arena_growth import allocate_slot
from worker.data.dataset import DataSet, TokenRows, load
from worker.data.token_cache import Reading, loose_stream
from worker.data.token_stream import StreamView
from worker.model.arena import AdapterState, Slot
from worker.replicas.base_loader import BaseCopy

STEP_TOKENS = {"cpu": 4096, "cuda": 65536}


@dataclass(frozen=True)
class KeptSearch:
    """data: the task's rows; test: those that neither training nor selection reads; adapters: float32 [rank, W] by job."""

    ground: Ground
    sweep: Sweep
    driver: EarlyExitDriver
    data: DataSet
    test: TokenRows
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


def search(base: BaseCopy, pair: Pair, spec: TaskSpec, seed: int, sets: Path, rows: int | None = None) -> KeptSearch:
    """Search with the product's policy. sets: the folder of the sets; rows: at most, of a set."""
    with tempfile.TemporaryDirectory() as name:
        task_file, test_file = rows_of(pair.set, sets, Path(name), rows)
        data = load(spec, task_file, None, base.reader)
        stream = loose_stream(test_file, Reading(base.reader, spec.objective, spec.training.max_seq_len), _go_on)
        test = TokenRows(StreamView(stream, np.arange(stream.rows)), stream.per_row)
        ground = ground_of(base, spec, data, test, STEP_TOKENS[base.trainer.backbone.device.type], _go_on)
        sweep = blank(ground, pair.name, "default", seed, _go_on)
        driver = EarlyExitDriver(spec, sweep)
        adapters: dict[int, Tensor] = {}

        def keep(job: int, slot: Slot) -> None:
            if driver.entrants[job].best_step == driver.entrants[job].step:
                adapters[job] = base.trainer.arena.master[slot.used].to("cpu", torch.float32, copy=True)

        train(ground, sweep, driver, {}, _go_on, keep)
    return KeptSearch(ground, sweep, driver, data, test, adapters)


def _go_on() -> None:
    """Nothing ends a search early."""
