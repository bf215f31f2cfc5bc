"""Several tenants on one executor: who joins disturbs nobody, and whatever one of them does changes no bit of another's."""

import hashlib
import logging
import re
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from contract.messages.placement_messages import CheckpointRef, Placement
from contract.messages.report_messages import Throughput
from contract.states import ExitReason, JobStatus
from tests.worker.corpus import rows
from tests.worker.inside import Inside
from worker.adapters.arena_adapters import ArenaAdapters
from worker.adapters.job_checkpoint import Tensors, save
from worker.executor.task_run import TaskRun
from worker.model.arena import AdapterState, Arena, SlotOwnershipError
from worker.model.backbone import Backbone
from worker.model.plain.trainer import Trainer
from worker.pipe_messages import Detach
from worker.policy.job_record import JobKey, JobProgress
from worker.replicas.replica_set import Replicas

CALM = {"policy": "none", "eval_every": 4}
JOB = {"learning_rate": [3e-3], "rank": [8], "batch_size": [4]}
LONG = [{"prompt": f"{n}", "completion": f" sheep {n}" * 90} for n in range(12)]


def of_tenant(placement: Placement, tenant: str) -> Placement:
    return placement.model_copy(update={"tenant_id": tenant})


def again(placement: Placement, key: str) -> Placement:
    return placement.model_copy(update={"placement_id": key, "token": f"token-{key}"})


def ends(reported) -> tuple[dict, dict, dict]:
    """What a task leaves: its curves, its adapters' bytes, and how its jobs ended."""
    files = {job: [(file.path, file.sha256) for file in manifest.files] for job, manifest in reported.manifests.items()}
    return dict(reported.curves), files, {job: event.kind for job, event in reported.ended.items()}


def test_a_joiner_is_prepared_beside_the_loop_on_a_trainer_of_its_own(fleet, placing, tmp_path, monkeypatch):
    """The joiner's rows are of another length, so a profile is measured: while the loop steps, and with another trainer."""
    spec = {"early_exit": CALM, "training": {"max_steps": 40, "max_seq_len": 200}}
    first, joiner = of_tenant(placing(JOB, **spec), "a"), of_tenant(placing(JOB, LONG, **spec), "b")
    (alone,) = Inside(fleet, tmp_path / "alone").run(again(first, "p9"))
    real, load, guard = Trainer._train_pass, Backbone.load, threading.Lock()
    inside: dict[Trainer, list[str]] = {}
    shared, loaded, met = [], [], threading.Event()

    def watched(self, segments, recompute):
        thread = threading.current_thread().name
        with guard:
            inside.setdefault(self, []).append(thread)
            here = [name for names in inside.values() for name in names]
            if len(set(here)) > 1:
                met.set()
            if len(set(inside[self])) > 1:
                shared.append(list(inside[self]))
        try:
            if thread == "preparations" and loaded and any(reported.step[0] for reported in fleet.reported.values()):
                met.wait(30)  # for a step of the loop
            return real(self, segments, recompute)
        finally:
            with guard:
                inside[self].remove(thread)

    monkeypatch.setattr(Trainer, "_train_pass", watched)
    monkeypatch.setattr(Backbone, "load", lambda *args: loaded.append(args) or load(*args))
    fleet.reported.clear()
    kept, joined = Inside(fleet, tmp_path / "both").run(first, joining=[joiner])
    assert met.is_set(), "the loop stepped while the joiner was measured"
    assert not shared, "no trainer was used by two threads at once"
    assert len(loaded) == 1, "the base was not loaded again"
    assert ends(kept) == ends(alone)
    assert len(joined.ended) == 1


def test_what_a_joiner_takes_is_in_the_log(fleet, placing, tmp_path, caplog):
    caplog.set_level(logging.INFO, "worker.executor")
    spec = {"early_exit": CALM, "training": {"max_steps": 20}}
    first, joiner = placing(JOB, **spec), placing(JOB, rows(30, seed=3), **spec)
    Inside(fleet, tmp_path).run(first, joining=[joiner])
    said = [record.getMessage() for record in caplog.records]
    parts = next(line for line in said if line.startswith(f"placement {joiner.placement_id} is prepared"))
    assert re.search(r"[\d.]+ s \(base [\d.]+, rows [\d.]+, checkpoints [\d.]+, memory profile [\d.]+, first weights", parts)
    assert any(re.match(rf"placement {joiner.placement_id}: first optimizer step [\d.]+ s after attach", line) for line in said)


# ---- fair steps --------------------------------------------------------------------------------------------------------


def steps_by_task() -> tuple[list[tuple[str, int]], object]:
    """Every training loss in the order in which the executor made them, as (placement, step)."""
    made: list[tuple[str, int]] = []
    real = TaskRun.trained

    def noted(self, run, loss, said):
        made.append((self.key, run.step + 1))
        real(self, run, loss, said)

    return made, noted


def test_a_neighbour_of_long_rows_is_split_along_its_batch_and_the_others_step_meanwhile(fleet, placing, tmp_path, monkeypatch):
    """Its step takes eight pieces of a micro-batch; every loss of everybody is that of running alone, to the bit."""
    long_job = {"learning_rate": [3e-3], "rank": [8], "batch_size": [8], "dropout": [0.1]}
    long = of_tenant(
        placing(long_job, LONG, early_exit=CALM, training={"max_steps": 24, "epochs": 20, "max_seq_len": 200}), "long"
    )
    short = of_tenant(placing(JOB, rows(24), early_exit=CALM, training={"max_steps": 60, "epochs": 20}), "short")
    narrow = {"worker_step_tokens": 200}
    alone = [Inside(fleet, tmp_path / name, **narrow).run(again(p, name))[0] for name, p in (("a", long), ("b", short))]
    made, noted = steps_by_task()
    monkeypatch.setattr(TaskRun, "trained", noted)
    both = Inside(fleet, tmp_path / "both", **narrow).run(long, short)
    for one, other in zip(alone, both, strict=True):
        assert ends(one) == ends(other)
    order = [key for key, _ in made]
    order = order[order.index(short.placement_id) :]  # both are there
    turns = [at for at, key in enumerate(order) if key == long.placement_id]
    between = [order[a:b].count(short.placement_id) for a, b in pairwise(turns)]
    assert max(between) >= 4, "the other steps while the long one is in the midst of a step"
    assert order.count(short.placement_id) > len(turns)


def test_a_tenant_with_many_tasks_does_not_slow_down_one_with_one(fleet, placing, tmp_path, monkeypatch):
    """A micro-batch holds one task's step at a time, so that turns are seen: one tenant has three tasks, the other one."""
    spec = {"early_exit": CALM, "training": {"max_steps": 24}}
    one = of_tenant(placing(JOB, **spec), "one")
    many = [of_tenant(placing(JOB, **spec), "many") for _ in range(3)]
    made, noted = steps_by_task()
    monkeypatch.setattr(TaskRun, "trained", noted)
    Inside(fleet, tmp_path, worker_step_tokens=160).run(one, *many)
    last = max(at for at, (key, _) in enumerate(made) if key == one.placement_id)
    theirs = sum(key != one.placement_id for key, _ in made[:last])
    assert theirs <= 1.6 * 24, "together they get about what the one gets"


def test_gpu_seconds_are_split_by_tokens_and_add_up(fleet, placing, tmp_path, monkeypatch):
    spec = {"early_exit": CALM, "training": {"max_steps": 12}}
    placements = [of_tenant(placing(JOB | {"batch_size": [size]}, **spec), f"t{size}") for size in (1, 2, 8)]
    whole, real = [], Replicas.step

    def timed(self, jobs, slices, on_progress):
        stepped, hopeless = real(self, jobs, slices, on_progress)
        whole.append((stepped.seconds, {group: work.tokens for group, work in stepped.work.items()}))
        return stepped, hopeless

    monkeypatch.setattr(Replicas, "step", timed)
    reported = Inside(fleet, tmp_path).run(*placements)
    shares = {r.placement.placement_id: sum(w.share_seconds for w in r.of(Throughput)) for r in reported}
    assert sum(shares.values()) == pytest.approx(sum(seconds for seconds, _ in whole), rel=1e-6)
    for key, share in shares.items():
        own = sum(seconds * tokens[key] / sum(tokens.values()) for seconds, tokens in whole if key in tokens)
        assert share == pytest.approx(own, rel=1e-6)


# ---- isolation ---------------------------------------------------------------------------------------------------------

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


def test_a_tenants_adapter_of_nan(fleet, placing, tmp_path, tiny_base, three):
    width = Arena(Backbone.load(Path(tiny_base.source)).targets, 8).layout.width
    nan = torch.full((8, width), float("nan"))
    save(tmp_path / "nan", JobProgress(step=1, ema=1.0), Tensors(AdapterState(nan, nan.clone(), nan.clone()), None))
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
    """Passes with a row of the bad tenant's length find none, whoever else is in them, and leave ruins in the gradients."""
    real = Trainer._train_pass

    def small(self, segments, recompute):
        if any(example.length > 150 for segment in segments if segment.slot is not None for example in segment.examples):
            for segment in segments:
                self.arena.grad[segment.slot.used].fill_(float("nan"))
            torch.empty(1 << 60, dtype=torch.uint8)
        return real(self, segments, recompute)

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

    *healthy, gone = inside.run(*placements, bad, prepare=cancel_soon)
    assert gone.ended == {}
    assert [ends(one) for one in healthy] == alone


def test_dpo_and_sft_tenants_share_a_step(fleet, placing, tmp_path):
    pairs = [{"prompt": f"{n} apples", "chosen": f" yes {n}", "rejected": " no"} for n in range(20)]
    spec = {"early_exit": CALM, "training": {"max_steps": 8}}
    placements = [
        of_tenant(placing(JOB | {"beta": [0.1]}, pairs, objective={"type": "dpo"}, **spec), "dpo"),
        of_tenant(placing(JOB, **spec), "sft"),
        of_tenant(placing(JOB | {"beta": [0.3]}, pairs[:14], objective={"type": "dpo"}, **spec), "dpo2"),
    ]
    alone = [ends(Inside(fleet, tmp_path / f"{at}").run(again(p, f"d{at}"))[0]) for at, p in enumerate(placements)]
    reported = Inside(fleet, tmp_path / "all").run(*placements[:2], joining=placements[2:])
    assert [ends(one) for one in reported] == alone


@pytest.mark.parametrize("precision", ["nf4", "nf4_double"])
def test_tenants_share_a_base_in_4_bits(fleet, placing, tmp_path, precision):
    spec = {"early_exit": CALM, "training": {"max_steps": 6}}
    placements = [of_tenant(placing(JOB | {"learning_rate": [rate]}, **spec), str(rate)) for rate in (3e-3, 1e-3)]
    placements = [p.model_copy(update={"base": p.base.model_copy(update={"precision": precision})}) for p in placements]
    alone = [ends(Inside(fleet, tmp_path / f"{at}").run(again(p, f"n{at}"))[0]) for at, p in enumerate(placements)]
    reported = Inside(fleet, tmp_path / "all").run(*placements)
    assert [ends(one) for one in reported] == alone


def test_tenants_on_two_replicas_step_as_they_do_alone(fleet, placing, tmp_path):
    """One has jobs on both replicas, of several pieces each: those on the second wait until all of its step is done."""
    spec = {"early_exit": CALM, "training": {"max_steps": 8}}
    wide = placing(JOB | {"batch_size": [4, 16], "learning_rate": [3e-3, 1e-3]}, **spec)
    other = placing(JOB, rows(24), **spec)
    narrow = {"worker_step_tokens": 200}
    placements = [of_tenant(wide, "wide"), of_tenant(other, "other")]
    alone = [ends(Inside(fleet, tmp_path / f"{at}", **narrow).run(again(p, f"w{at}"))[0]) for at, p in enumerate(placements)]
    two = [p.model_copy(update={"device_indexes": [0, 1]}) for p in placements]
    reported = Inside(fleet, tmp_path / "two", **narrow).run(*two)
    assert [ends(one) for one in reported] == alone


def test_an_adapter_from_anothers_rows_is_never_exported(fleet, placing, tmp_path, monkeypatch):
    """The rows of two tenants are shuffled under the store: the executor ends, and nothing of either was stored."""
    spec = {"early_exit": CALM, "training": {"max_steps": 8}}
    one, other = of_tenant(placing(JOB, **spec), "one"), of_tenant(placing(JOB, **spec), "other")
    real = ArenaAdapters.note_best

    def shuffled(self, key):
        slots = self.slots([JobKey(placement.placement_id, 0) for placement in (one, other)])
        if len(slots) == 2:
            slots[0].row, slots[1].row = slots[1].row, slots[0].row
        real(self, key)

    monkeypatch.setattr(ArenaAdapters, "note_best", shuffled)
    with pytest.raises(SlotOwnershipError):
        Inside(fleet, tmp_path).run(one, other)
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
