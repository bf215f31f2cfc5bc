"""A placement on several devices whose ranks hold shards of the base: each job is bit for bit the job of a whole base, whatever
the other ranks have to do, and what ends a rank ends the placement, whose jobs go on elsewhere."""

import os
import signal

import pytest

from contract.messages.report_messages import ActivationsChosen, PlacementFailed
from tests.worker.executor.completion_work import chat
from tests.worker.inside import Inside, resumed
from tests.worker.placer import placer
from tests.worker.processes import gone
from tests.worker.replicas import faulty_rank
from tests.worker.replicas.resumption import adapters, assert_goes_on_from_checkpoints
from tests.worker.replicas.test_replica_set import CALM, JOB, ranks, wide
from worker.boot_clock import boot_now
from worker.executor.preparation.placement_wants import wants_of
from worker.model.plain.trainer import OutOfMemory
from worker.model.sharding.rank_collectives import GatherFailed, RankCollectives
from worker.model.sharding.weight_shards import WeightShards
from worker.replicas.ranks.rank_process import RankLost

pytestmark = pytest.mark.usefixtures("measured_once")

ALWAYS = {"worker_sharding": "always"}
PAIRS = [{"prompt": f"{n} apples", "chosen": f" yes {n}", "rejected": " no"} for n in range(20)]


@pytest.fixture
def placing(fleet, deep_base):
    return placer(fleet, deep_base)


@pytest.fixture(autouse=True)
def no_rank_stays():
    yield
    assert all(gone(pid) for pid in ranks())


@pytest.fixture
def gathered(monkeypatch) -> list[str]:
    """The units that rank 0 gathers."""
    seen, real = [], WeightShards._begin

    def begin(self, unit):
        if self._holds[self._place(unit)] != unit:
            seen.append(unit)
        real(self, unit)

    monkeypatch.setattr(WeightShards, "_begin", begin)
    return seen


def same(reported, narrow) -> None:
    assert reported.curves == narrow.curves
    assert adapters(reported) == adapters(narrow) != {}


@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_jobs_of_a_sharded_base_are_those_of_a_whole_one(fleet, placing, tmp_path, devices, gathered):
    """Five jobs, whose batches differ; a rank has room for one, so jobs wait, are parked, and go on where there is room."""
    space = {"learning_rate": [1e-2, 1e-3, 3e-3, 1e-4, 3e-2], "rank": [8], "batch_size": [4], "dropout": [0.1]}
    early_exit = {"warmup_fraction": 0.3, "keep_fraction": 0.6, "tau_gap": 10.0}
    placement = placing(space, early_exit=early_exit, training={"epochs": 1})
    (narrow,) = Inside(fleet, tmp_path / "narrow", worker_step_tokens=300).run(placement)
    assert not gathered
    inside = Inside(fleet, tmp_path / "wide", worker_step_tokens=300, **ALWAYS)
    (reported,) = inside.run(wide(placement, devices=devices))
    same(reported, narrow)
    assert set(gathered) == {"embedding", "head", *(f"layer {layer}" for layer in range(5))}
    (chosen,) = reported.of(ActivationsChosen)
    assert f"the base is sharded over {devices} devices (5 of its 5 layers, embedding and head)" in chosen.reason


@pytest.mark.parametrize("form", ["dpo", "nf4", "recomputed"])
def test_what_trains_on_a_whole_base_trains_on_shards_with_fewer_jobs_than_ranks(fleet, placing, tmp_path, form):
    space, task = {**JOB, "learning_rate": [3e-3, 1e-3]}, {"early_exit": CALM, "training": {"max_steps": 6}}
    if form == "dpo":
        placement = placing({**space, "beta": [0.1]}, PAIRS, objective={"type": "dpo"}, **task)
    else:
        placement = placing(space, precision="nf4" if form == "nf4" else "bf16", **task)
    settings = {"worker_recompute": form == "recomputed", "worker_step_tokens": 200}
    (narrow,) = Inside(fleet, tmp_path / "narrow", **settings).run(placement)
    fleet.asked.append(chat("asked"))
    (reported,) = Inside(fleet, tmp_path / "wide", **settings, **ALWAYS).run(wide(placement, devices=3))
    same(reported, narrow)
    assert len(adapters(reported)) == 2
    assert [work.request_id for work in fleet.asked] == ["asked"], "no completion is taken: it could not be answered"


def test_a_step_has_no_more_tokens_than_said_before_a_base_is_loaded(placing):
    """Under dpo a row is two answers; a job that is yet to be proposed may get the largest batch."""
    space = {"learning_rate": [3e-3, 1e-3], "rank": [8], "batch_size": [2, 4]}
    sft = placing(space, training={"max_seq_len": 100})
    dpo = placing({**space, "beta": [0.1]}, PAIRS, objective={"type": "dpo"}, training={"max_seq_len": 100})
    unsaid = dpo.model_copy(update={"jobs": [job.model_copy(update={"proposed": False}) for job in dpo.jobs]})
    found = [sorted(wants_of(placement).step_tokens) for placement in (sft, dpo, unsaid)]
    assert found == [[200, 200, 400, 400], [400, 400, 800, 800], [800] * 4]


def test_a_task_that_joins_a_sharded_base_changes_nobody(fleet, placing, tmp_path):
    """Its baseline is passes that rank 0 runs alone, between the steps of all."""
    space = {**JOB, "learning_rate": [3e-3, 1e-3, 1e-2]}
    first = placing(space, early_exit=CALM, training={"max_steps": 16})
    second = placing({**space, "beta": [0.1]}, PAIRS, objective={"type": "dpo"}, early_exit=CALM, training={"max_steps": 6})
    alone = [Inside(fleet, tmp_path / f"alone{at}").run(task)[0] for at, task in enumerate((first, second))]
    pair = wide(first, "first"), wide(second, "second")
    both = Inside(fleet, tmp_path / "wide", **ALWAYS).run(pair[0], joining=[pair[1]])
    for reported, narrow in zip(both, alone, strict=True):
        same(reported, narrow)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_lost_ends_the_executor_and_each_job_goes_on_from_its_checkpoint(
    fleet, placing, tmp_path, monkeypatch, number
):
    """Killed, it ends the executor at once; stopped, once the lease is over, though rank 0 waits within a pass."""
    placement = placing({**JOB, "learning_rate": [1e-2, 1e-3, 1e-4]}, early_exit=CALM, training={"max_steps": 24})
    (unbroken,) = Inside(fleet, tmp_path / "unbroken").run(placement)
    monkeypatch.setattr("worker.executor.attached_placements._SILENT_SECONDS", 2.0)
    lost, hit = wide(placement, "lost"), []

    def hurt():
        reported = fleet.reported["lost"]
        if not hit and reported.checkpoints and min(reported.step.values()) >= 6:
            hit.extend(ranks())
            os.kill(hit[0], number)

    def most(self, count):
        """The lease is over once rank 0 waits for the one that is stopped."""
        if hit and number == signal.SIGSTOP:
            monkeypatch.setattr("worker.executor.placement.placement_lease.boot_now", lambda: boot_now() + fleet.lease_seconds)
        return real(self, count)

    real = RankCollectives.most
    monkeypatch.setattr(RankCollectives, "most", most)
    inside = Inside(fleet, tmp_path / "lost", worker_checkpoint_seconds=0.001, **ALWAYS)
    inside.between_steps = hurt
    with pytest.raises(GatherFailed if number == signal.SIGSTOP else (GatherFailed, RankLost)):
        inside.run(lost, paced=True)
    assert gone(hit[0])
    reported = fleet.reported["lost"]
    assert not reported.ended
    reported.live = False
    monkeypatch.undo()
    (rest,) = Inside(fleet, tmp_path / "rest", **ALWAYS).run(wide(resumed(reported, "rest"), "rest"))
    assert_goes_on_from_checkpoints(reported, rest, unbroken)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_pass_without_memory_ends_the_placement_and_the_next_one_takes_shorter_passes(fleet, placing, tmp_path, monkeypatch):
    placement = placing({**JOB, "learning_rate": [1e-2, 1e-3, 3e-3]}, early_exit=CALM, training={"max_steps": 4})
    (wanted,) = Inside(fleet, tmp_path / "whole").run(placement)
    monkeypatch.setattr("worker.replicas.ranks.rank_start.RANK_MODULE", faulty_rank.MODULE)
    monkeypatch.setenv(faulty_rank.VARIABLE, "no_memory:150")
    with pytest.raises((GatherFailed, RankLost)):
        Inside(fleet, tmp_path / "small", **ALWAYS).run(wide(placement, "first"))
    fleet.reported["first"].live = False
    (reported,) = Inside(fleet, tmp_path / "small", **ALWAYS).run(wide(placement, "second"))
    for job, told in reported.ended.items():
        assert told.kind == "job_completed"
        curve, same = reported.curves[job, "train_loss"], wanted.curves[job, "train_loss"]
        assert list(curve.values()) == pytest.approx(list(same.values()), rel=1e-4)


def test_a_pass_without_memory_on_the_first_rank_is_remembered_too(fleet, placing, tmp_path, monkeypatch):
    placement = placing({**JOB, "learning_rate": [1e-2, 1e-3]}, early_exit=CALM, training={"max_steps": 4})
    faulty_rank.fail("no_memory:150", monkeypatch)
    with pytest.raises(OutOfMemory):
        Inside(fleet, tmp_path, **ALWAYS).run(wide(placement, "first"))
    fleet.reported["first"].live = False
    (reported,) = Inside(fleet, tmp_path, **ALWAYS).run(wide(placement, "second"))
    assert [event.kind for event in reported.ended.values()] == ["job_completed"] * 2


def test_texts_are_refused_on_a_sharded_base_with_what_to_do(fleet, placing, tmp_path):
    evaluation = {"metrics": [{"type": "exact_match"}], "max_new_tokens": 4}
    placement = placing({**JOB, "learning_rate": [1e-3]}, early_exit=CALM, evaluation=evaluation)
    (reported,) = Inside(fleet, tmp_path, **ALWAYS).run(wide(placement))
    (failed,) = reported.of(PlacementFailed)
    assert "generates no texts here, since the base is sharded over 2 devices" in failed.error
    assert "leave evaluation out" in failed.error


def test_a_base_that_fits_is_not_sharded(fleet, placing, tmp_path, gathered):
    placement = placing({**JOB, "learning_rate": [1e-3]}, early_exit=CALM, training={"max_steps": 2})
    (reported,) = Inside(fleet, tmp_path).run(wide(placement))
    assert not gathered
    assert "sharded" not in reported.of(ActivationsChosen)[0].reason
