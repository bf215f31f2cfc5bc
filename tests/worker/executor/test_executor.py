"""The executor on a real tiny model, over real HTTP: what becomes of jobs, alone and packed."""

from contextlib import suppress
from hashlib import sha256
from queue import Empty
from threading import Barrier, Event

import pytest

from contract.job_schedule import JobSchedule
from contract.messages.report_messages import (
    Attached,
    BaseEvaluated,
    Detached,
    JobMoved,
    PlacementFailed,
    Throughput,
)
from contract.states import ExitReason, JobStatus
from tests.worker.corpus import jsonl, rows
from tests.worker.inside import Inside
from tests.worker.placer import placer
from worker.api_client import PlacementLink
from worker.data.node_cache import NodeCache
from worker.data.object_cache import ObjectCache
from worker.executor.training_loop import Executor
from worker.pipe_messages import ExecutorProgress

pytestmark = pytest.mark.usefixtures("measured_once")

CALM = {"policy": "none", "eval_every": 4}
SPACE = {"learning_rate": [1e-2, 1e-3, 1e-4, 3e-3], "rank": [8], "batch_size": [4]}


def fates(reported) -> dict[int, str]:
    return {job: getattr(event, "reason", event.kind) for job, event in sorted(reported.ended.items())}


def adapter(reported, job: int = 0) -> dict[str, str]:
    return {file.path: file.sha256 for file in reported.manifests[job].files}


def test_validation_rows_that_are_trained_on_are_reported(fleet, placing, tmp_path):
    one = {"learning_rate": [1e-3], "rank": [4], "batch_size": [4]}
    held = fleet.add_file("held", jsonl([*rows(40)[:4], *rows(1, seed=1)]))
    placement = placing(one, dataset={"validation_file_id": "held"}, training={"max_steps": 2}, early_exit=CALM)
    (reported,) = Inside(fleet, tmp_path).run(placement.model_copy(update={"validation_file": held}))
    attached = reported.events[0]
    assert (attached.train_rows, attached.validation_rows, attached.overlap_rows) == (40, 5, 4)


def test_a_search_from_its_first_step_to_its_adapters(fleet, placing, tmp_path):
    placement = placing(
        SPACE,
        training={"epochs": 3},
        early_exit={"policy": "alto", "warmup_fraction": 0.2, "keep_fraction": 0.5, "tau_gap": 10.0},
    )
    inside = Inside(fleet, tmp_path)
    (reported,) = inside.run(placement)
    attached, detached = reported.events[0], reported.events[-1]
    assert isinstance(attached, Attached)
    assert isinstance(detached, Detached)
    assert (attached.train_rows, attached.validation_rows) == (36, 4)
    assert attached.total_steps == dict.fromkeys(range(4), 27)
    assert [(e.placement_id, e.lost) for e in inside.ended] == [("p1", False)]
    assert sorted(fates(reported).values()) == [*["job_completed"] * 2, *[ExitReason.UNDERPERFORMING] * 2]
    schedule = JobSchedule.of(placement.spec, placement.jobs[0].config, 36)
    for job, event in reported.ended.items():
        steps = 27 if event.kind == "job_completed" else schedule.warmup_steps
        assert list(reported.curves[job, "train_loss"]) == list(range(1, steps + 1))
        assert list(reported.curves[job, "train_accuracy"]) == list(range(1, steps + 1))
        vals = reported.curves[job, "val_loss"]
        assert list(reported.curves[job, "val_accuracy"]) == list(vals)
        assert list(vals) == [step for step in range(1, steps + 1) if schedule.evaluates_at(step)]
        averaged = job in reported.manifests and reported.manifests[job].averaged_steps
        assert min(vals.values()) == vals[event.best_step]
        assert event.best_val_loss < min(vals.values()) if averaged else event.best_val_loss == min(vals.values())
        if event.kind == "job_completed":
            manifest = reported.manifests[job]
            assert (manifest.step, manifest.val_loss) == (event.best_step, event.best_val_loss)
            assert manifest.lineage.config == placement.jobs[job].config
    assert set(reported.manifests) == {job for job, fate in fates(reported).items() if fate == "job_completed"}
    (base,) = reported.of(BaseEvaluated)
    assert min(event.best_val_loss for event in reported.ended.values()) < base.val_loss
    ranked = sorted(reported.warmup_losses, key=reported.warmup_losses.get)
    assert {j for j, fate in fates(reported).items() if fate == "job_completed"} == set(ranked[:2])
    evidence = reported.ended[ranked[3]].evidence
    assert (evidence["rank"], evidence["kept"], evidence["alive"]) == (4, 2, 4)


def test_asha_stops_jobs_at_their_rungs(fleet, placing, tmp_path):
    asha = {"policy": "asha", "warmup_fraction": 0.2, "reduction_factor": 2}
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE, training={"epochs": 4}, early_exit=asha))
    ended = reported.ended.values()
    assert sorted(e.step for e in ended) == [8, 8, 16, 36], (
        "all four come at once: two stay, then one, which has nobody to beat"
    )
    assert [e.evidence["rung"] for e in sorted(ended, key=lambda e: e.step)[:3]] == [0, 0, 1]
    assert sorted((e.step, len(e.rung_losses)) for e in ended) == [(8, 1), (8, 1), (16, 2), (36, 3)]
    assert all(e.rung_losses[-1] == e.evidence["val_loss"] for e in ended if e.kind == "job_exited"), "what it was ranked by"
    for job, end in reported.ended.items():
        assert end.rung_losses[0] == reported.warmup_losses[job]
    at_16 = {job: curve[16] for (job, series), curve in reported.curves.items() if series == "val_loss" and 16 in curve}
    assert min(at_16, key=at_16.get) == next(e.job for e in ended if e.kind == "job_completed")


def test_a_forward_is_for_a_micro_batch_and_not_for_a_job(fleet, placing, tmp_path):
    placement = placing(SPACE, early_exit=CALM, training={"epochs": 1})
    (reported,) = Inside(fleet, tmp_path).run(placement)
    work = reported.of(Throughput)
    steps = sum(w.steps for w in work)
    assert steps == 9
    assert sum(w.forwards for w in work) == sum(w.micro_batches for w in work) == 9  # four jobs in each
    assert sum(w.evaluation_tokens for w in work) > 0

    tight = placing(SPACE, early_exit=CALM, training={"epochs": 1})
    (reported,) = Inside(fleet, tmp_path, worker_step_tokens=60).run(tight)
    work = reported.of(Throughput)
    assert sum(w.forwards for w in work) == sum(w.micro_batches for w in work) > 4 * 9, "batches are cut"


def test_candidates_rotate_through_few_slots(fleet, placing, tmp_path):
    space = {"learning_rate": [1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5], "rank": [8], "batch_size": [4]}
    early_exit = {"policy": "alto", "warmup_fraction": 0.2, "tau_gap": 10.0}
    placement = placing(space, training={"epochs": 3}, early_exit=early_exit)
    (reported,) = Inside(fleet, tmp_path, worker_step_tokens=300).run(placement)
    (all_at_once,) = Inside(fleet, tmp_path, worker_step_tokens=300).run(
        placement.model_copy(update={"placement_id": "wide", "token": "token-wide"})
    )
    moves = [(e.job, e.status) for e in reported.of(JobMoved)]
    first_park = moves.index(next(m for m in moves if m[1] is JobStatus.PARKED))
    assert any(m[1] is JobStatus.WARMUP for m in moves[first_park:]), "some began only when others had parked"
    assert sorted(fates(reported).values()) == [*["job_completed"] * 2, *[ExitReason.UNDERPERFORMING] * 4]
    promoted = [m[0] for m in moves if m[1] is JobStatus.TRAINING]
    assert {j for j, fate in fates(reported).items() if fate == "job_completed"} == set(promoted)
    assert reported.curves == all_at_once.curves


def test_parked_jobs_that_do_not_fit_in_memory_come_back_from_disk_the_same(fleet, placing, tmp_path, monkeypatch):
    placement = placing(SPACE, training={"epochs": 3}, early_exit={"warmup_fraction": 0.2, "tau_gap": 10.0})
    (in_memory,) = Inside(fleet, tmp_path, worker_step_tokens=150).run(placement)
    monkeypatch.setattr("worker.adapters.arena_adapters.max_arena_rows", lambda capacity, tokens, recompute: 0)
    (on_disk,) = Inside(fleet, tmp_path, worker_step_tokens=150, worker_park_bytes=1).run(
        placement.model_copy(update={"placement_id": "disk", "token": "token-disk"})
    )
    assert any(e.status is JobStatus.PARKED for e in on_disk.of(JobMoved))
    assert on_disk.curves == in_memory.curves
    assert adapter(on_disk, next(iter(on_disk.manifests))) == adapter(in_memory, next(iter(in_memory.manifests)))


def test_packed_equals_solo_bit_for_bit(fleet, placing, tmp_path):
    """The same job alone, and beside seven others of which some belong to another task: the same curve, the same adapter."""
    data, other_data = rows(40), rows(30, seed=7)
    job = {"learning_rate": [3e-3], "rank": [12], "batch_size": [4], "seed": [5], "dropout": [0.2]}
    spec = {"early_exit": CALM, "training": {"epochs": 2}}
    (solo,) = Inside(fleet, tmp_path).run(placing(job, data, **spec))
    neighbours = job | {"learning_rate": [3e-3, 1e-2, 1e-4, 0.3], "dropout": [0.2, 0.0]}
    strangers = {"learning_rate": [1e-3], "rank": [3, 40], "batch_size": [1, 16]}
    packed, stranger = Inside(fleet, tmp_path).run(placing(neighbours, data, **spec), placing(strangers, other_data, **spec))
    assert sum(w.micro_batches for w in packed.of(Throughput)) < 4 * len(solo.curves[0, "train_loss"])
    assert len(stranger.ended) == 4
    assert packed.curves[0, "train_loss"] != packed.curves[1, "train_loss"], "dropout does something"
    assert packed.curves[0, "train_loss"] == solo.curves[0, "train_loss"]
    assert packed.curves[0, "val_loss"] == solo.curves[0, "val_loss"]
    for series in ("train_accuracy", "val_accuracy"):
        assert packed.curves[0, series] == solo.curves[0, series]
        assert 0 < max(solo.curves[0, series].values()) <= 1
    assert adapter(packed) == adapter(solo)


def test_a_ruined_neighbour_changes_nobody(fleet, placing, tmp_path):
    spec = {"early_exit": {**CALM, "policy": "alto", "tau_gap": 10.0, "warmup_fraction": 1.0}, "training": {"epochs": 2}}
    healthy = {"rank": [8], "batch_size": [4], "learning_rate": [3e-3]}
    (solo,) = Inside(fleet, tmp_path).run(placing(healthy, **spec))
    (packed,) = Inside(fleet, tmp_path).run(placing({**healthy, "learning_rate": [3e-3, 1e20]}, **spec))
    ruined = packed.ended[1]
    assert ruined.reason is ExitReason.DIVERGING
    assert ruined.evidence["pattern"] == "loss is not finite"
    assert packed.curves[1, ruined.evidence["series"]][ruined.step] is None
    accuracy = packed.curves[1, ruined.evidence["series"].replace("loss", "accuracy")]
    assert ruined.step not in accuracy, "there is none of a loss that is not finite"
    assert ruined.step < packed.ended[0].step
    assert packed.curves[0, "train_loss"] == solo.curves[0, "train_loss"]
    assert adapter(packed) == adapter(solo)


def test_what_cannot_be_trained_fails_with_a_reason(fleet, placing, tmp_path):
    broken = placing(SPACE, [{"prompt": "x", "completion": "y"}])
    elsewhere = placing(SPACE)
    moved = elsewhere.model_copy(update={"base": elsewhere.base.model_copy(update={"revision": "0" * 64})})
    for placement, says in ((broken, "no training rows are left"), (moved, "revision")):
        inside = Inside(fleet, tmp_path)
        (reported,) = inside.run(placement)
        (failed,) = reported.of(PlacementFailed)
        assert says in failed.error
        assert [e.lost for e in inside.ended] == [False]


def test_rows_with_a_token_that_the_base_lacks_are_named_by_it(fleet, wordy_base, tmp_path):
    told = [{"prompt": f"{n}?", "completion": f" <image_soft_token> {n}"} for n in range(9)]
    (reported,) = Inside(fleet, tmp_path / "node").run(placer(fleet, wordy_base)(SPACE, told))
    (failed,) = reported.of(PlacementFailed)
    assert "hold '<image_soft_token>' (token 4096), which base model tiny lacks: it knows 0 to 4095" in failed.error


def test_a_job_that_never_fits_fails_alone_with_its_numbers(fleet, placing, tmp_path, monkeypatch):
    monkeypatch.setattr("worker.replicas.memory_profile._resident", lambda: 0)
    space = {"learning_rate": [1e-3], "rank": [8, 256], "batch_size": [4]}
    settings = {"worker_memory_bytes": 8 * 2**20, "worker_step_tokens": 64}
    (reported,) = Inside(fleet, tmp_path, **settings).run(placing(space, early_exit=CALM))
    assert fates(reported) == {0: "job_completed", 1: "job_failed"}
    assert "256 adapter rows" in reported.ended[1].error


def test_the_daemon_hears_of_progress_all_along(fleet, placing, tmp_path):
    inside = Inside(fleet, tmp_path)
    inside.run(placing(SPACE, early_exit=CALM, training={"epochs": 3}))
    told = [news for news in inside.news if isinstance(news, ExecutorProgress)]
    assert told[0].phases == {"p1": "loading"}
    assert {"p1": "training"} in [news.phases for news in told]
    assert [news.at for news in told] == sorted(news.at for news in told)


def test_another_executor_that_drops_what_it_exported_takes_nothing_along(fleet, placing, tmp_path, monkeypatch):
    """Adapters of two tasks may have files of the same bytes, their configurations at least, and executors of a node share a
    folder."""
    put, inside = PlacementLink.put, Inside(fleet, tmp_path)

    def late(self, grant, path):
        ObjectCache(path.parent).drop(sha256(path.read_bytes()).hexdigest())  # as the other does, once it has uploaded its own
        put(self, grant, path)

    monkeypatch.setattr(PlacementLink, "put", late)
    (reported,) = inside.run(placing(SPACE, early_exit=CALM))
    assert set(reported.manifests) == {0, 1, 2, 3}
    assert not [*inside.settings.scratch.glob("executors/*/*export-*")], "what is uploaded is dropped"


def test_adapters_of_jobs_that_end_together_are_stored_two_at_a_time(fleet, placing, tmp_path, monkeypatch):
    put, meeting = PlacementLink.put, Barrier(2)

    def together(self, grant, path):
        meeting.wait(60)
        put(self, grant, path)

    monkeypatch.setattr(PlacementLink, "put", together)
    (reported,) = Inside(fleet, tmp_path).run(placing({**SPACE, "learning_rate": [1e-2, 1e-3]}, early_exit=CALM))
    assert set(reported.manifests) == {0, 1}
    assert adapter(reported, 0) != adapter(reported, 1)


def test_a_checkpoint_that_a_tasks_end_overtakes_leaves_no_file(fleet, placing, tmp_path, monkeypatch):
    put, drop, under_way, ended, dropped = PlacementLink.put, NodeCache.drop_object, set(), Event(), Event()
    inside, executors, stop = Inside(fleet, tmp_path, worker_checkpoint_seconds=0.01), [], Executor._stop

    def late(self, grant, path):
        if path.name.startswith("checkpoint-"):
            under_way.add(sha256(path.read_bytes()).hexdigest())
            assert ended.wait(60)
        put(self, grant, path)

    def noted(self, tenant_id, name):
        drop(self, tenant_id, name)
        if name in under_way:
            dropped.set()
            executors[0]._inbox.put(lambda: None)

    def stop_later(self, seconds):
        with suppress(Empty):
            while not dropped.is_set():  # a loop that has ended runs nothing that the upload hands it
                self._inbox.get(timeout=60)()
        stop(self, 60)  # for the files of the other jobs, which are removed after the first one's

    fleet.on_report = lambda reported, report: ended.set() if len(reported.ended) == 4 else None
    monkeypatch.setattr(PlacementLink, "put", late)
    monkeypatch.setattr(NodeCache, "drop_object", noted)
    monkeypatch.setattr(Executor, "_stop", stop_later)
    (reported,) = inside.run(placing(SPACE, early_exit=CALM), prepare=executors.append)
    assert set(reported.manifests) == {0, 1, 2, 3}
    assert dropped.is_set()
    assert not [*inside.settings.scratch.glob("tenants/*/objects/*")]
