"""Several tenants on one executor: whatever one of them does changes no bit of another's, and nobody gets another's adapter."""

import hashlib
from pathlib import Path

import pytest
import torch

from contract.messages.placement_messages import CheckpointRef
from contract.messages.report_messages import Throughput
from contract.states import ExitReason, JobStatus
from tests.worker.corpus import rows
from tests.worker.executor.test_sharing import CALM, JOB, LONG, again, ends, of_tenant
from tests.worker.inside import Inside
from worker.adapters.arena_adapters import ArenaAdapters
from worker.adapters.job_checkpoint import Tensors, save
from worker.model.arena import AdapterState, Arena, SlotOwnershipError
from worker.model.backbone import Backbone
from worker.model.plain.trainer import Trainer
from worker.pipe_messages import Detach
from worker.policy.job_record import JobKey, JobProgress

HEALTHY = {"early_exit": CALM, "training": {"max_steps": 24}}


@pytest.fixture
def three(fleet, placing, tmp_path):
    """Three healthy tenants, and what each leaves when it has the executor to itself."""
    jobs = (
        {"learning_rate": [3e-3]},
        {"learning_rate": [1e-3], "dropout": [0.2]},
        {"learning_rate": [1e-2, 1e-3], "rank": [4]},
    )
    placements = [of_tenant(placing(JOB | job, rows(30 + 4 * at, seed=at), **HEALTHY), f"h{at}") for at, job in enumerate(jobs)]
    alone = [ends(Inside(fleet, tmp_path / f"h{at}").run(again(p, f"h{at}"))[0]) for at, p in enumerate(placements)]
    return placements, alone


def healthy_ends(fleet, folder, three, *bad, **more):
    """Run the healthy tenants beside these, and check that no bit of theirs is another."""
    placements, alone = three
    reported = Inside(fleet, folder, **more).run(*placements, *bad)
    for one, want in zip(reported, alone, strict=False):
        assert ends(one) == want
    return reported[len(placements) :]


def test_a_learning_rate_of_a_million_in_one_tenant(fleet, placing, tmp_path, three):
    bad = placing(JOB | {"learning_rate": [1e6]}, early_exit=CALM | {"policy": "alto", "tau_gap": 10.0}, training={"epochs": 2})
    (ruined,) = healthy_ends(fleet, tmp_path / "all", three, of_tenant(bad, "bad"))
    assert {event.kind for event in ruined.ended.values()} <= {"job_exited", "job_completed"}


def test_the_step_that_ruins_a_job_is_counted_before_the_job_ends(fleet, placing, tmp_path):
    """The service ends a task with its last job. What its executor says after that arrives by chance only."""
    (ruined,) = Inside(fleet, tmp_path).run(placing(JOB | {"learning_rate": [1e29]}, **HEALTHY))
    exited = ruined.events.index(ruined.ended[0])
    assert ruined.ended[0].reason is ExitReason.DIVERGING
    assert sum(event.steps for event in ruined.events[:exited] if isinstance(event, Throughput)) == ruined.ended[0].step


def test_a_tenants_adapter_of_nan(fleet, placing, tmp_path, tiny_base, three):
    width = Arena(Backbone.load(Path(tiny_base.source)).targets, 8).layout.width
    nan = torch.full((8, width), float("nan"))
    save(tmp_path / "nan", JobProgress(step=1, ema=1.0), Tensors(AdapterState(nan, nan.clone(), nan.clone())))
    content = (tmp_path / "nan").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    fleet.objects[digest] = content
    bad = placing(JOB, **HEALTHY)
    ref = CheckpointRef(step=1, sha256=digest, bytes=len(content))
    job = bad.jobs[0].model_copy(update={"status": JobStatus.TRAINING, "promoted": True, "checkpoint": ref})
    (ruined,) = healthy_ends(fleet, tmp_path / "all", three, of_tenant(bad.model_copy(update={"jobs": [job]}), "bad"))
    assert ruined.ended[0].reason is ExitReason.DIVERGING


def test_a_tenants_poison_rows(fleet, placing, tmp_path, three):
    """Rows with nothing to learn beside one of the longest that fit."""
    poison = [{"prompt": "x" * 300, "completion": "y"}, *({"prompt": f"{n}", "completion": " !" * 120} for n in range(6))]
    bad = of_tenant(placing(JOB, poison, early_exit=CALM, training={"max_steps": 6, "max_seq_len": 200}), "bad")
    healthy_ends(fleet, tmp_path / "all", three, bad)


def test_a_tenant_whose_rows_find_no_memory(fleet, placing, tmp_path, three, monkeypatch):
    """Passes with a row of the bad tenant's length find none, with others or without, and leave ruins in the gradients."""
    real = Trainer._train_pass

    def small(self, segments, *form):
        if any(example.length > 150 for segment in segments if segment.slot is not None for example in segment.examples):
            for segment in segments:
                self.arena.grad[segment.slot.used].fill_(float("nan"))
            torch.empty(1 << 60, dtype=torch.uint8)
        return real(self, segments, *form)

    monkeypatch.setattr(Trainer, "_train_pass", small)
    bad = of_tenant(placing(JOB, LONG, early_exit=CALM, training={"max_steps": 4, "max_seq_len": 200}), "bad")
    (lost,) = healthy_ends(fleet, tmp_path / "all", three, bad)
    assert lost.ended[0].kind == "job_failed"
    assert "ran out of memory in a pass" in lost.ended[0].error


def test_a_tenant_that_cancels_in_the_midst_of_a_step(fleet, placing, tmp_path, three):
    bad = of_tenant(placing(JOB | {"batch_size": [16]}, early_exit=CALM, training={"epochs": 100}), "bad")
    placements, alone = three
    inside = Inside(fleet, tmp_path / "all", worker_step_tokens=4096)

    def cancel_soon(executor):
        def on_report(reported, report):
            if reported.placement is bad and reported.step[0] >= 3:
                executor.handle_command(Detach(placement_id=bad.placement_id))

        fleet.on_report = on_report

    *healthy, gone = inside.run(*placements, bad, prepare=cancel_soon, paced=True)
    assert gone.ended == {}
    assert [ends(one) for one in healthy] == alone


def test_an_adapter_from_anothers_rows_is_never_exported(fleet, placing, tmp_path, monkeypatch):
    """The rows of two tenants are shuffled under the store: the executor ends, and nothing of either was stored."""
    spec = {"early_exit": CALM, "training": {"max_steps": 8}}
    one, other = of_tenant(placing(JOB, **spec), "one"), of_tenant(placing(JOB, **spec), "other")
    real = ArenaAdapters.note_lowest

    def shuffled(self, key, place, most):
        slots = self.slots([JobKey(placement.placement_id, 0) for placement in (one, other)])
        if len(slots) == 2:
            slots[0].row, slots[1].row = slots[1].row, slots[0].row
        real(self, key, place, most)

    monkeypatch.setattr(ArenaAdapters, "note_lowest", shuffled)
    with pytest.raises(SlotOwnershipError):
        Inside(fleet, tmp_path).run(one, other, together=True)
    assert not any(reported.manifests for reported in fleet.reported.values())


def test_a_manifest_says_whose_adapter_it_is(fleet, placing, tmp_path):
    spec = {"early_exit": CALM, "training": {"max_steps": 6}}
    placements = [of_tenant(placing(JOB | {"rank": [rank]}, **spec), f"t{rank}") for rank in (4, 12)]
    for rank, reported in zip((4, 12), Inside(fleet, tmp_path).run(*placements), strict=True):
        manifest, placement = reported.manifests[0], reported.placement
        assert (manifest.lineage.task_id, manifest.lineage.job_id) == (placement.task_id, placement.jobs[0].job_id)
        first, stop = manifest.arena_rows
        assert stop - first == rank
        for file in manifest.files:
            assert hashlib.sha256(fleet.objects[file.sha256]).hexdigest() == file.sha256
