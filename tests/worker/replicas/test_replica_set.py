"""A placement on several devices: its jobs are dealt to replicas, and each is bit for bit the job of a single one."""

import threading

import pytest
import torch

from contract.messages.placement_messages import Placement
from contract.messages.report_messages import Checkpointed, JobMoved, Throughput
from contract.states import ExitReason, JobStatus
from tests.worker.inside import Inside, resumed
from worker.api_client import PlacementLink
from worker.boot_clock import boot_now
from worker.executor.training_loop import Executor
from worker.model.plain.trainer import OutOfMemory, Trainer
from worker.pipe_messages import Attach
from worker.replicas.base_loader import load_bases

CALM = {"policy": "none", "eval_every": 4}
JOB = {"rank": [8], "batch_size": [4]}


def wide(placement: Placement, key: str = "wide", devices: int = 2) -> Placement:
    """The same task on so many devices."""
    update = {"placement_id": key, "token": f"token-{key}", "device_indexes": list(range(devices))}
    return placement.model_copy(update=update)


def adapters(reported) -> dict[int, list]:
    return {job: manifest.files for job, manifest in reported.manifests.items()}


def device_steps(reported) -> tuple[int, int]:
    """Steps that were taken, and those of single devices."""
    work = reported.of(Throughput)
    return sum(w.steps for w in work), sum(w.device_steps or 0 for w in work)


def test_copies_on_one_device_share_the_frozen_weights(tiny_base):
    one, other = load_bases(tiny_base, [torch.device("cpu")] * 2)
    assert one.trainer.backbone is other.trainer.backbone
    assert one.trainer.arena is not other.trainer.arena


def test_five_jobs_on_two_replicas_are_those_of_one(fleet, placing, tmp_path):
    """A replica has room for one of them, so that jobs wait, are parked, and go on where there is room."""
    space = {"learning_rate": [1e-2, 1e-3, 3e-3, 1e-4, 3e-2], "rank": [8], "batch_size": [4], "dropout": [0.1]}
    early_exit = {"warmup_fraction": 0.3, "keep_fraction": 0.6, "tau_gap": 10.0}
    placement = placing(space, early_exit=early_exit, training={"epochs": 1})
    (narrow,) = Inside(fleet, tmp_path / "narrow", worker_step_tokens=300).run(placement)
    (reported,) = Inside(fleet, tmp_path / "wide", worker_step_tokens=300).run(wide(placement))
    assert any(e.status is JobStatus.PARKED for e in reported.of(JobMoved))
    assert reported.curves == narrow.curves
    assert adapters(reported) == adapters(narrow) != {}
    assert {job: (e.kind, e.step) for job, e in reported.ended.items()} == {
        job: (e.kind, e.step) for job, e in narrow.ended.items()
    }
    steps, single = device_steps(reported)
    assert single > 1.5 * steps
    work = reported.of(Throughput)
    assert 0 < sum(w.device_seconds or 0 for w in work) <= 2 * sum(w.seconds for w in work)
    assert len(set(device_steps(narrow))) == 1


def test_a_replica_whose_jobs_are_ruined_takes_over_from_the_other_which_notices_nothing(fleet, placing, tmp_path, caplog):
    spec = {"early_exit": {**CALM, "policy": "alto", "tau_gap": 10.0, "warmup_fraction": 1.0}, "training": {"max_steps": 15}}
    (healthy,) = Inside(fleet, tmp_path / "alone").run(placing({**JOB, "learning_rate": [3e-3, 1e-3]}, **spec))
    caplog.set_level("INFO", "worker.replicas.replica_set")
    mixed = placing({**JOB, "learning_rate": [3e-3, 1e20, 1e-3, 2e20]}, **spec)
    (reported,) = Inside(fleet, tmp_path / "wide").run(wide(mixed))
    for job in (1, 3):
        assert reported.ended[job].reason is ExitReason.DIVERGING
    for alone, job in ((0, 0), (1, 2)):
        for series in ("train_loss", "val_loss"):
            assert reported.curves[job, series] == healthy.curves[alone, series]
        assert adapters(reported)[job] == adapters(healthy)[alone]
    (taken,) = [record.message for record in caplog.records if "moved to replica" in record.message]
    assert taken.endswith("moved to replica 1 to balance load")
    steps, single = device_steps(reported)
    assert single > 2 * steps - 3, "neither idled for long"


def test_killed_on_one_width_it_goes_on_on_another(fleet, placing, tmp_path):
    space = {"learning_rate": [1e-2, 1e-3, 1e-4, 3e-3], "rank": [8], "batch_size": [4]}
    early_exit = {"warmup_fraction": 0.3, "keep_fraction": 0.5, "tau_gap": 10.0}
    placement = placing(space, early_exit=early_exit, training={"max_steps": 14})
    (unbroken,) = Inside(fleet, tmp_path / "unbroken").run(placement)
    curves, ended, found = {}, {}, {}
    for devices, until in ((2, 3), (1, 7), (2, 99)):
        key = f"until{until}"
        placement = wide(placement, key, devices)

        def lose(reported, report, until=until):
            reported.live = not reported.checkpoints or max(reported.step.values()) < until

        fleet.on_report = lose
        (reported,) = Inside(fleet, tmp_path / key, worker_checkpoint_seconds=0.05).run(placement)
        kept = {job: ref.step for job, ref in reported.checkpoints.items()}
        for (job, series), points in reported.curves.items():
            done = float("inf") if job in reported.ended else kept.get(job, 0)
            curves.setdefault((job, series), {}).update({step: v for step, v in points.items() if step <= done})
        for checkpointed in reported.of(Checkpointed):
            training = {ref.step for job, ref in checkpointed.jobs.items() if job in reported.promoted}
            assert len(training) <= 1, "one moment for all"
        found |= {job: files for job, files in adapters(reported).items() if job in reported.ended}
        ended |= reported.ended
        assert (len(ended) == 4) == (until == 99), "it was hurt on both widths"
        placement = resumed(reported, key)
    assert curves == unbroken.curves
    assert found == adapters(unbroken)


def on_second() -> bool:
    return threading.current_thread().name.startswith("replica")


def test_memory_that_one_replica_lacks_shrinks_that_one_alone(fleet, placing, tmp_path, monkeypatch, caplog):
    rates = [1e-2, 1e-3, 3e-3, 3e-4]
    placement = placing({**JOB, "learning_rate": rates}, early_exit=CALM, training={"max_steps": 4})
    (wanted,) = Inside(fleet, tmp_path / "large").run(placement)
    real = Trainer.train

    def small(self, segments, *form):
        tokens = sum(example.length for segment in segments for example in segment.examples)
        if on_second() and tokens > 150:
            self.arena.grad.fill_(float("nan"))
            raise OutOfMemory(tokens)
        return real(self, segments, *form)

    monkeypatch.setattr(Trainer, "train", small)
    (reported,) = Inside(fleet, tmp_path / "small").run(wide(placement))
    cuts = [record for record in caplog.records if "out of memory in a pass" in record.message]
    assert cuts
    assert all(record.threadName.startswith("replica") for record in cuts)
    for job, told in reported.ended.items():
        assert told.kind == "job_completed"
        curve, same = reported.curves[job, "train_loss"], wanted.curves[job, "train_loss"]
        assert list(curve.values()) == pytest.approx(list(same.values()), rel=1e-4)
    assert sum(reported.curves[job, "train_loss"] == wanted.curves[job, "train_loss"] for job in range(4)) >= 2


def test_an_error_on_one_replica_ends_the_executor(fleet, placing, tmp_path, monkeypatch):
    real = Trainer.train

    def broken(self, segments, *form):
        if on_second():
            raise RuntimeError("the second device is gone")
        return real(self, segments, *form)

    monkeypatch.setattr(Trainer, "train", broken)
    placement = wide(placing({**JOB, "learning_rate": [1e-2, 1e-3]}, early_exit=CALM))
    fleet.place(placement)
    executor = Executor(Inside(fleet, tmp_path).settings, PlacementLink(fleet.url), lambda news: None)
    executor.handle_command(Attach(placement=placement, deadline=boot_now() + placement.lease_seconds))
    with pytest.raises(RuntimeError, match="second device is gone"):
        executor.run()
