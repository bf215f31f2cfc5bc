"""A placement on several devices: its jobs are dealt to replicas, each in a process of its own, and each is bit for bit the job
of a placement on one."""

import logging
import os
import signal
from dataclasses import replace

import pytest

from contract.messages.placement_messages import Placement
from contract.messages.report_messages import ActivationsChosen, Checkpointed, JobMoved, Throughput
from contract.states import ExitReason, JobStatus
from tests.worker.inside import Inside, resumed
from tests.worker.processes import children, environment, gone
from tests.worker.replicas import faulty_rank
from tests.worker.replicas.resumption import adapters, assert_goes_on_from_checkpoints
from worker.boot_clock import boot_now
from worker.executor.placement.placement_lease import LeaseNotHeld
from worker.replicas.ranks.rank_group import LoadedBase
from worker.replicas.ranks.rank_process import RankLost, RankProcess

pytestmark = pytest.mark.usefixtures("measured_once")

CALM = {"policy": "none", "eval_every": 4}
JOB = {"rank": [8], "batch_size": [4]}


def wide(placement: Placement, key: str = "wide", devices: int = 2) -> Placement:
    """The same task on so many devices."""
    update = {"placement_id": key, "token": f"token-{key}", "device_indexes": list(range(devices))}
    return placement.model_copy(update=update)


def device_steps(reported) -> tuple[int, int]:
    """Steps that were taken, and those of single devices, of which each one's first does not count."""
    work = reported.of(Throughput)
    return sum(w.steps for w in work), sum(w.device_steps or 0 for w in work)


def ranks() -> list[int]:
    """The other ranks of an executor in this process."""
    return [pid for pid in children(os.getpid()) if "RANK" in environment(pid)]


@pytest.fixture(autouse=True)
def no_rank_stays():
    yield
    assert all(gone(pid) for pid in ranks())


def test_one_device_takes_one_process(fleet, placing, tmp_path):
    seen = []
    fleet.on_report = lambda reported, report: seen.append(ranks())
    Inside(fleet, tmp_path).run(placing({**JOB, "learning_rate": [1e-3]}, early_exit=CALM, training={"max_steps": 4}))
    assert seen
    assert not any(seen)


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_five_jobs_on_several_replicas_are_those_of_one(fleet, placing, tmp_path, monkeypatch, caplog, devices):
    """A replica has room for one of them, so that on two jobs wait, are parked, and go on where there is room. Main memory has
    none for weights at the lowest losses."""
    caplog.set_level(logging.INFO)
    space = {"learning_rate": [1e-2, 1e-3, 3e-3, 1e-4, 3e-2], "rank": [8], "batch_size": [4], "dropout": [0.1]}
    early_exit = {"warmup_fraction": 0.3, "keep_fraction": 0.6, "tau_gap": 10.0}
    placement = placing(space, early_exit=early_exit, training={"epochs": 1})
    (narrow,) = Inside(fleet, tmp_path / "narrow", worker_step_tokens=300).run(placement)
    assert "some lie in files" not in caplog.text
    known = LoadedBase.capacities
    monkeypatch.setattr(LoadedBase, "capacities", lambda *asked: tuple(replace(has, lowest_bytes=0) for has in known(*asked)))
    (reported,) = Inside(fleet, tmp_path / "wide", worker_step_tokens=300).run(wide(placement, devices=devices))
    assert any(e.status is JobStatus.PARKED for e in reported.of(JobMoved))
    assert "some lie in files" in caplog.text
    assert reported.curves == narrow.curves
    assert adapters(reported) == adapters(narrow) != {}
    assert {job: (e.kind, e.step) for job, e in reported.ended.items()} == {
        job: (e.kind, e.step) for job, e in narrow.ended.items()
    }
    steps, single = device_steps(reported)
    assert single > 1.5 * steps
    work = reported.of(Throughput)
    assert 0 < sum(w.device_seconds or 0 for w in work) <= devices * sum(w.seconds for w in work)
    steps, single = device_steps(narrow)
    assert single == steps - 1


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
    assert single > 2 * (steps - 1) - 3, "neither idled for long"


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
        (reported,) = Inside(fleet, tmp_path / key, worker_checkpoint_seconds=0.001).run(placement, paced=True)
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


@pytest.mark.parametrize("objective", ["dpo", "sft"])
def test_what_trains_on_one_device_trains_on_several(fleet, placing, tmp_path, objective):
    """Preferences against a reference that the first replica computes; a base in 4 bits; and more replicas than jobs."""
    pairs = [{"prompt": f"{n} apples", "chosen": f" yes {n}", "rejected": " no"} for n in range(20)]
    space = {**JOB, "learning_rate": [3e-3, 1e-3]}
    task = {"early_exit": CALM, "training": {"max_steps": 6}}
    if objective == "dpo":
        placement = placing({**space, "beta": [0.1]}, pairs, objective={"type": "dpo"}, **task)
    else:
        placement = placing(space, precision="nf4", **task)
    (narrow,) = Inside(fleet, tmp_path / "narrow").run(placement)
    (reported,) = Inside(fleet, tmp_path / "wide").run(wide(placement, devices=3 if objective == "sft" else 2))
    assert reported.curves == narrow.curves
    assert adapters(reported) == adapters(narrow)
    assert len(adapters(reported)) == 2


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_lost_ends_the_executor_and_each_job_goes_on_from_its_checkpoint(
    fleet, placing, tmp_path, monkeypatch, number
):
    """Killed, it ends the executor at once; stopped, once the lease is over, and then it does not stay behind."""
    placement = placing({**JOB, "learning_rate": [1e-2, 1e-3, 1e-4]}, early_exit=CALM, training={"max_steps": 24})
    (unbroken,) = Inside(fleet, tmp_path / "unbroken").run(placement)
    monkeypatch.setattr("worker.executor.attached_placements._SILENT_SECONDS", 2.0)
    lost, hit = wide(placement, "lost"), []

    def hurt():
        reported = fleet.reported["lost"]
        if not hit and reported.checkpoints and min(reported.step.values()) >= 6:
            hit.extend(ranks())
            os.kill(hit[0], number)
            if number == signal.SIGSTOP:
                monkeypatch.setattr(
                    "worker.executor.placement.placement_lease.boot_now", lambda: boot_now() + fleet.lease_seconds
                )

    inside = Inside(fleet, tmp_path / "lost", worker_checkpoint_seconds=0.001)
    inside.between_steps = hurt
    with pytest.raises(RankLost if number == signal.SIGKILL else LeaseNotHeld) as error:
        inside.run(lost, paced=True)
    if number == signal.SIGKILL:
        assert f"rank 1 (pid {hit[0]}) ended with -9" in str(error.value)
    assert gone(hit[0])
    reported = fleet.reported["lost"]
    assert not reported.ended
    reported.live = False
    monkeypatch.undo()
    (rest,) = Inside(fleet, tmp_path / "rest").run(wide(resumed(reported, "rest"), "rest"))
    assert_goes_on_from_checkpoints(reported, rest, unbroken)


def faulty(monkeypatch, fault: str) -> None:
    """Ranks beyond the first have this fault."""
    monkeypatch.setattr("worker.replicas.ranks.rank_start.RANK_MODULE", faulty_rank.MODULE)
    monkeypatch.setenv(faulty_rank.VARIABLE, fault)


def test_memory_that_one_replica_lacks_shrinks_that_one_alone(fleet, placing, tmp_path, monkeypatch, caplog):
    rates = [1e-2, 1e-3, 3e-3, 3e-4]
    placement = placing({**JOB, "learning_rate": rates}, early_exit=CALM, training={"max_steps": 4})
    (wanted,) = Inside(fleet, tmp_path / "large").run(placement)
    faulty(monkeypatch, "no_memory:150")
    (reported,) = Inside(fleet, tmp_path / "small").run(wide(placement))
    assert not [record for record in caplog.records if "out of memory in a pass" in record.message], "not here"
    differ = 0
    for job, told in reported.ended.items():
        assert told.kind == "job_completed"
        curve, same = reported.curves[job, "train_loss"], wanted.curves[job, "train_loss"]
        assert list(curve.values()) == pytest.approx(list(same.values()), rel=1e-4)
        differ += curve != same
    assert 1 <= differ <= 2, "the batches of its jobs are cut otherwise, and those of no others"


def test_a_job_that_a_rank_cannot_run_fails_alone_and_says_why(fleet, placing, tmp_path, monkeypatch):
    """Its rows find no memory there in any form, so the task is told that it recomputes, and then that the job cannot run."""
    faulty(monkeypatch, "no_memory:5")
    placement = placing({**JOB, "learning_rate": [1e-2, 1e-3]}, early_exit=CALM, training={"max_steps": 4})
    (reported,) = Inside(fleet, tmp_path).run(wide(placement))
    assert sorted(event.kind for event in reported.ended.values()) == ["job_completed", "job_failed"]
    (failed,) = (event for event in reported.ended.values() if event.kind == "job_failed")
    assert "ran out of memory in a pass" in failed.error
    assert [event.recompute for event in reported.of(ActivationsChosen)] == [False, True], "the rank's choice is told"


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_step_is_one_message_to_a_rank(fleet, placing, tmp_path, monkeypatch, tasks):
    """Also where two tasks take turns: what their next slices take comes with the answer."""
    called, real = [], RankProcess._send

    def noted(self, name, *more, **how):
        called.append(name)
        return real(self, name, *more, **how)

    monkeypatch.setattr(RankProcess, "_send", noted)
    monkeypatch.setattr("worker.executor.step_scheduler._APART_SECONDS", 0.0)
    spec = {"early_exit": {"policy": "none", "eval_every": 200}, "training": {"max_steps": 40 * tasks, "epochs": 12}}
    placements = [wide(placing({**JOB, "learning_rate": [1e-2, 1e-3]}, **spec), f"task{task}") for task in range(tasks)]
    reported = Inside(fleet, tmp_path, worker_step_tokens=160).run(*placements, together=True)
    assert all(len(task.manifests) == 2 for task in reported)
    all_there = max(place for place, name in enumerate(called) if name == "allocate") + 1
    steps = called[all_there : called.index("evaluate", all_there)]
    assert steps.count("steps") >= 10
    assert len(steps) - steps.count("steps") <= tasks, steps  # what a task's first slice takes is asked


def test_an_error_on_one_replica_ends_the_executor(fleet, placing, tmp_path, monkeypatch):
    faulty(monkeypatch, "broken")
    placement = wide(placing({**JOB, "learning_rate": [1e-2, 1e-3]}, early_exit=CALM))
    with pytest.raises(RankLost, match=r"rank 1 \(pid \d+\) ended with 1"):
        Inside(fleet, tmp_path).run(placement)


def test_ranks_have_the_variables_of_torchrun_and_no_secret(fleet, placing, tmp_path, monkeypatch):
    secrets = {"MOTET_JOIN_TOKEN", "MOTET_WORKER_HOSTS_SECRET", "HF_TOKEN"}
    for name in secrets:
        monkeypatch.setenv(name, "secret" * 8)
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")
    seen = {}

    def look(reported, report):
        seen.update({has["RANK"]: has for has in map(environment, children(os.getpid())) if "RANK" in has})

    fleet.on_report = look
    placement = placing({**JOB, "learning_rate": [1e-2]}, early_exit=CALM, training={"max_steps": 2})
    Inside(fleet, tmp_path).run(wide(placement, devices=3))
    assert sorted(seen) == ["1", "2"]
    for rank, has in seen.items():
        assert (has["LOCAL_RANK"], has["WORLD_SIZE"], has["LOCAL_WORLD_SIZE"]) == (rank, "3", "3")
        assert not secrets & has.keys()
        assert has["MASTER_ADDR"] == "192.0.2.1", "one that is given stays"
        assert has["MASTER_PORT"] == seen["1"]["MASTER_PORT"]
        assert int(has["MASTER_PORT"])
