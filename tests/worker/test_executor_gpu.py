"""The executor on a GPU: a whole search over real HTTP on the fused trainer; packed beside solo; a ruined neighbour."""

import math

import pytest

from contract.states import ExitReason
from tests.worker.inside import Inside
from worker.model.device_trainer import DeviceTrainer

pytestmark = pytest.mark.gpu

CALM = {"policy": "none", "eval_every": 4}
JOB = {"rank": [8], "batch_size": [4]}


@pytest.fixture
def made(monkeypatch):
    """The fused trainers that were made."""
    trainers = []

    class Noted(DeviceTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            trainers.append(self)

    monkeypatch.setattr("worker.base.DeviceTrainer", Noted)
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
    assert kinds.count("job_completed") == 4
    assert set(kinds) == {"job_completed", ExitReason.UNDERPERFORMING}
    assert all(math.isfinite(event.best_val_loss) for event in reported.ended.values())
    assert set(reported.manifests) == {job for job, event in reported.ended.items() if event.kind == "job_completed"}


def test_packed_follows_solo_and_learns(fleet, placing, tmp_path):
    curves = []
    for rates in ([1e-2], [1e-2, 1e-3, 3e-3]):
        placement = placing({**JOB, "learning_rate": rates}, early_exit=CALM)
        (reported,) = Inside(fleet, tmp_path / str(len(rates)), worker_device="cuda").run(placement)
        curves.append(list(reported.curves[0, "train_loss"].values()))
    assert curves[1] == pytest.approx(curves[0], rel=2e-2)
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
