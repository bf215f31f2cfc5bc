"""The executor on a GPU: a whole search over real HTTP on the fused trainer; packed beside solo; a ruined neighbour."""

import gc
import logging
import math

import pytest
import torch

from contract.states import ExitReason
from tests.worker.inside import Inside
from tests.worker.replicas.resumption import adapters
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.cuda.pass_graphs import PassGraphs
from worker.replicas.replica_set import Replicas

pytestmark = pytest.mark.gpu

CALM = {"policy": "none", "eval_every": 4}
JOB = {"rank": [8], "batch_size": [4]}


@pytest.fixture
def two_gpus():
    if torch.cuda.device_count() < 2:
        pytest.skip("NOT RUN: a placement on two GPUs needs two")


def on(placement, *devices):
    """The same task on these devices."""
    key = "on" + "".join(map(str, devices))
    update = {"placement_id": f"{placement.placement_id}{key}", "device_indexes": list(devices)}
    return placement.model_copy(update={**update, "token": f"token-{update['placement_id']}"})


@pytest.fixture
def made(monkeypatch):
    """The fused trainers that were made, and how many passes each has captured."""
    trainers = []

    class Counted(PassGraphs):
        captures = 0

        def _capture(self, *args):
            self.captures += 1
            return super()._capture(*args)

    class Noted(DeviceTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            trainers.append(self)

    monkeypatch.setattr("worker.model.cuda.device_trainer.PassGraphs", Counted)
    monkeypatch.setattr("worker.replicas.base_loader.DeviceTrainer", Noted)
    return trainers


def test_a_search_ends_with_adapters_from_the_fused_trainer(fleet, placing, tmp_path, made):
    space = {"learning_rate": [1e-2, 1e-3, 1e-4, 3e-3], "rank": [8, 24], "batch_size": [4]}
    early_exit = {"warmup_fraction": 0.2, "keep_fraction": 0.5, "tau_gap": 10.0}
    (reported,) = Inside(fleet, tmp_path, worker_device="cuda").run(
        placing(space, training={"epochs": 3}, early_exit=early_exit)
    )
    assert len(made) == 1
    assert made[0].forwards > 0
    kinds = [getattr(event, "reason", event.kind) for event in reported.ended.values()]
    assert 2 <= kinds.count("job_completed") <= 6, "half to one and a half times keep_fraction of 8 jobs pass the cut"
    assert set(kinds) == {"job_completed", ExitReason.UNDERPERFORMING}
    assert all(math.isfinite(event.best_val_loss) for event in reported.ended.values())
    assert set(reported.manifests) == {job for job, event in reported.ended.items() if event.kind == "job_completed"}


def test_several_steps_are_taken_between_two_looks_at_the_loop(fleet, placing, tmp_path, monkeypatch):
    """Each job takes every one of its steps, and is told once of each."""
    taken, real = [], Replicas.step

    def step(self, *order):
        steps, unrunnable = real(self, *order)
        taken.append(len(steps))
        return steps, unrunnable

    monkeypatch.setattr(Replicas, "step", step)
    spec = {"early_exit": {"policy": "none", "eval_every": 40}, "training": {"max_steps": 40, "epochs": 20}}
    (reported,) = Inside(fleet, tmp_path, worker_device="cuda").run(placing({**JOB, "learning_rate": [1e-3, 1e20]}, **spec))
    assert max(taken) > 1
    assert list(reported.curves[0, "train_loss"]) == list(range(1, 41))
    assert reported.ended[1].reason is ExitReason.DIVERGING
    assert None not in list(reported.curves[1, "train_loss"].values())[:-1]


def test_a_host_without_memory_for_the_lowest_losses_changes_no_adapter(fleet, placing, tmp_path, caplog):
    """Their weights lie in files. Checkpoints read them, and so does whoever exports an adapter."""
    caplog.set_level(logging.INFO)
    placement, found = placing({**JOB, "learning_rate": [1e-2, 1e-3]}, early_exit=CALM, training={"epochs": 1}), []
    for limits in ({}, {"worker_park_bytes": 1}):
        assert "some lie in files" not in caplog.text
        key = f"place{len(limits)}"
        place = placement.model_copy(update={"placement_id": key, "token": f"token-{key}"})
        folder, limits = tmp_path / key, {"worker_device": "cuda", "worker_checkpoint_seconds": 0.2, **limits}
        found += Inside(fleet, folder, **limits).run(place)
    assert "some lie in files" in caplog.text
    assert found[1].curves == found[0].curves
    assert adapters(found[1]) == adapters(found[0]) != {}


def test_packed_follows_solo_and_learns(fleet, placing, tmp_path):
    curves = []
    for rates in ([1e-2], [1e-2, 1e-3, 3e-3]):
        placement = placing({**JOB, "learning_rate": rates}, early_exit=CALM)
        (reported,) = Inside(fleet, tmp_path / str(len(rates)), worker_device="cuda").run(placement)
        curves.append(list(reported.curves[0, "train_loss"].values()))
    assert curves[1] == pytest.approx(curves[0], rel=2e-2)
    accuracies = list(reported.curves[0, "train_accuracy"].values())
    assert len(accuracies) == len(curves[1])
    assert sum(accuracies[:5]) < sum(accuracies[-5:]) <= 5
    assert sum(curves[0][-5:]) < sum(curves[0][:5])


def test_a_ruined_neighbour_changes_no_bit_of_anybody(fleet, placing, tmp_path):
    losses = []
    for rate in (1e-3, 1e20):
        spec = {"early_exit": {**CALM, "policy": "none"}, "training": {"epochs": 1}}
        placement = placing({**JOB, "learning_rate": [3e-3, rate]}, **spec)
        (reported,) = Inside(fleet, tmp_path / str(rate), worker_device="cuda").run(placement)
        losses.append(reported.curves[0, "train_loss"])
    steps = min(step for step, value in reported.curves[1, "train_loss"].items() if value is None)
    assert all(losses[0][step] == losses[1][step] for step in range(1, steps + 1))


def test_it_takes_no_more_of_its_gpu_than_it_was_given(fleet, placing, tmp_path):
    """The memory profile's longest pass, too. What earlier tests of this process left on the device counts as its own."""
    gc.collect()
    torch.cuda.empty_cache()
    given = torch.cuda.memory_reserved() + 2**29
    torch.cuda.reset_peak_memory_stats()
    placement = placing({**JOB, "learning_rate": [1e-3, 3e-3]}, early_exit=CALM)
    try:
        (reported,) = Inside(fleet, tmp_path, worker_device="cuda", worker_memory_bytes=given).run(placement)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert set(reported.manifests) == {0, 1}
    assert torch.cuda.max_memory_reserved() <= given


@pytest.mark.usefixtures("two_gpus")
def test_two_gpus_train_what_each_trains_alone(fleet, placing, tmp_path, made):
    """Jobs 0 and 2 are dealt to the first GPU, 1 and 3 to the second, which is another process's: packed as two placements of
    their own would be."""
    spec = {"early_exit": CALM, "training": {"epochs": 6}}
    rates = [1e-2, 1e-3, 3e-3, 1e-4]
    (both,) = Inside(fleet, tmp_path / "both", worker_device="cuda").run(
        on(placing({**JOB, "learning_rate": rates}, **spec), 0, 1)
    )
    assert [trainer.backbone.device.index for trainer in made] == [0]
    assert made[0].graphs.captures, "the arena forgets its graphs when it shrinks at the end"
    assert set(both.manifests) == {0, 1, 2, 3}
    for gpu in (0, 1):
        placement = on(placing({**JOB, "learning_rate": rates[gpu::2]}, **spec), gpu)
        (alone,) = Inside(fleet, tmp_path / str(gpu), worker_device="cuda").run(placement)
        for place, job in enumerate((gpu, gpu + 2)):
            assert both.curves[job, "train_loss"] == alone.curves[place, "train_loss"]
            assert both.curves[job, "val_loss"] == alone.curves[place, "val_loss"]
            assert both.manifests[job].files == alone.manifests[place].files


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_has_run_dry_takes_over_from_the_other(fleet, placing, tmp_path, caplog):
    caplog.set_level("INFO", "worker.replicas.replica_set")
    spec = {"early_exit": {**CALM, "policy": "alto", "tau_gap": 10.0, "warmup_fraction": 1.0}, "training": {"epochs": 4}}
    (alone,) = Inside(fleet, tmp_path / "alone", worker_device="cuda").run(
        placing({**JOB, "learning_rate": [3e-3, 1e-3]}, **spec)
    )
    mixed = on(placing({**JOB, "learning_rate": [3e-3, 1e20, 1e-3, 2e20]}, **spec), 0, 1)
    (reported,) = Inside(fleet, tmp_path / "both", worker_device="cuda").run(mixed)
    assert [record.message for record in caplog.records if "moved to replica 1 " in record.message]
    assert set(reported.manifests) == {0, 2}
    for place, job in ((0, 0), (1, 2)):
        curve, same = reported.curves[job, "train_loss"], alone.curves[place, "train_loss"]
        assert list(curve.values()) == pytest.approx(list(same.values()), rel=2e-2)
