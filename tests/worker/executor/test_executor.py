"""The executor on a real tiny model, over real HTTP: what becomes of jobs, alone and packed, hurt and resumed."""

import math
import random
import threading

import pytest

from contract.messages.report_messages import (
    Attached,
    BaseEvaluated,
    Checkpointed,
    Detached,
    JobMoved,
    PlacementFailed,
    Throughput,
)
from contract.states import ExitReason, JobStatus
from contract.task_spec import Schedule
from tests.worker.corpus import rows
from tests.worker.inside import Inside, resumed
from worker.pipe_messages import Detach, ExecutorProgress, Renew, Stop

CALM = {"policy": "none", "eval_every": 4}
SPACE = {"learning_rate": [1e-2, 1e-3, 1e-4, 3e-3], "rank": [8], "batch_size": [4]}


def fates(reported) -> dict[int, str]:
    return {job: getattr(event, "reason", event.kind) for job, event in sorted(reported.ended.items())}


def adapter(reported, job: int = 0) -> dict[str, str]:
    return {file.path: file.sha256 for file in reported.manifests[job].files}


def test_a_search_from_its_first_step_to_its_adapters(fleet, placing, tmp_path):
    placement = placing(
        SPACE, training={"epochs": 3}, early_exit={"warmup_fraction": 0.2, "keep_fraction": 0.5, "tau_gap": 10.0}
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
    schedule = Schedule.of(placement.spec, placement.jobs[0].config, 36)
    for job, event in reported.ended.items():
        steps = 27 if event.kind == "job_completed" else schedule.warmup_steps
        assert list(reported.curves[job, "train_loss"]) == list(range(1, steps + 1))
        vals = reported.curves[job, "val_loss"]
        assert list(vals) == [step for step in range(1, steps + 1) if schedule.evaluates_at(step)]
        assert event.best_val_loss == min(vals.values()) == vals[event.best_step]
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
    placement = placing(space, training={"epochs": 3}, early_exit={"warmup_fraction": 0.2, "tau_gap": 10.0})
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
    assert ruined.step < packed.ended[0].step
    assert packed.curves[0, "train_loss"] == solo.curves[0, "train_loss"]
    assert adapter(packed) == adapter(solo)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_killed_task_resumes_bit_for_bit(fleet, placing, tmp_path, seed):
    """Placed anew from whatever checkpoint was last, anywhere in the run, until it is done: the curves of an unbroken run."""
    draw = random.Random(seed)
    spec = {"training": {"epochs": 2}, "early_exit": {"warmup_fraction": 0.3, "keep_fraction": 0.5, "tau_gap": 10.0}}
    placement = placing(SPACE, **spec)
    narrow = {"worker_step_tokens": 300}
    (unbroken,) = Inside(fleet, tmp_path / "unbroken", **narrow).run(placement)

    curves, manifests, ends = {}, {}, {}
    for number in range(40):
        key = f"again{number}"
        placement = placement.model_copy(update={"placement_id": key, "token": f"token-{key}"})
        fatal = draw.randint(3, 10)  # reports until the placement is lost, without a word to the executor
        fleet.on_report = lambda reported, report, fatal=fatal: setattr(reported, "live", report.seq < fatal)
        inside = Inside(fleet, tmp_path / key, worker_checkpoint_seconds=0.05, **narrow)
        (reported,) = inside.run(placement)
        kept = {job: ref.step for job, ref in reported.checkpoints.items()}
        for (job, series), points in reported.curves.items():
            done = math.inf if job in reported.ended else kept.get(job, 0)
            curves.setdefault((job, series), {}).update({step: v for step, v in points.items() if step <= done})
        manifests.update({job: m for job, m in reported.manifests.items() if job in reported.ended})
        ends.update(reported.ended)
        if len(ends) == 4:
            break
        placement = resumed(reported, key)
    assert number > 0, "it was never hurt"
    assert curves == unbroken.curves
    assert {job: (e.kind, e.step) for job, e in ends.items()} == {j: (e.kind, e.step) for j, e in unbroken.ended.items()}
    assert {job: m.files for job, m in manifests.items()} == {job: m.files for job, m in unbroken.manifests.items()}


def test_an_outage_in_the_middle_changes_nothing(fleet, placing, tmp_path):
    placement = placing(SPACE, early_exit=CALM, training={"epochs": 2})
    (calm,) = Inside(fleet, tmp_path / "calm").run(placement)
    again = placement.model_copy(update={"placement_id": "again", "token": "token-again"})
    outages = iter([0.8, 0.8])

    def go_down(reported, report):
        seconds = next(outages, None) if reported.step[0] >= 2 else None
        if seconds is not None:
            fleet.down = True
            threading.Timer(seconds, setattr, (fleet, "down", False)).start()

    fleet.on_report = go_down
    (hurt,) = Inside(fleet, tmp_path / "hurt", worker_checkpoint_seconds=0.05).run(again)
    assert any(status == 503 for _, _, status in fleet.requests)
    assert hurt.curves == calm.curves
    assert {job: m.files for job, m in hurt.manifests.items()} == {job: m.files for job, m in calm.manifests.items()}


def test_told_to_stop_it_leaves_checkpoints_of_all_jobs(fleet, placing, tmp_path):
    placement = placing(SPACE, early_exit=CALM, training={"epochs": 20})
    inside = Inside(fleet, tmp_path)

    def stop_soon(executor):
        def on_report(reported, report):
            if reported.step[0] >= 5:
                executor.handle_command(Stop(seconds=20))

        fleet.on_report = on_report

    (reported,) = inside.run(placement, prepare=stop_soon)
    assert inside.ended == [], "the daemon gives the placements back itself"
    (checkpointed,) = reported.of(Checkpointed)
    steps = {ref.step for ref in checkpointed.jobs.values()}
    assert set(checkpointed.jobs) == {0, 1, 2, 3}
    assert steps == {reported.step[0]}, "one moment for all, and nothing after it"


def test_a_placement_that_was_ended_leaves_and_others_stay(fleet, placing, tmp_path):
    first, second = placing(SPACE, early_exit=CALM, training={"epochs": 50}), placing(SPACE, early_exit=CALM)
    inside = Inside(fleet, tmp_path)

    def detach_soon(executor):
        def on_report(reported, report):
            if reported.placement is first and reported.step[0] >= 2:
                executor.handle_command(Detach(placement_id=first.placement_id))

        fleet.on_report = on_report

    cut, whole = inside.run(first, second, prepare=detach_soon)
    assert {e.placement_id: e.lost for e in inside.ended} == {"p1": False, "p2": False}
    assert len(whole.ended) == 4
    assert cut.ended == {}


def test_asked_to_leave_it_loses_no_step_and_goes_on_elsewhere_bit_for_bit(fleet, placing, tmp_path):
    """In warmup, near its boundary, behind it: the jobs' states are stored at one moment, all is told, and then it goes."""
    spec = {"training": {"epochs": 6}, "early_exit": {"warmup_fraction": 0.3, "keep_fraction": 0.5, "tau_gap": 10.0}}
    narrow = {"worker_step_tokens": 300}
    placement = placing(SPACE, **spec)
    (unbroken,) = Inside(fleet, tmp_path / "unbroken", **narrow).run(placement)
    curves, manifests = {}, {}
    for at in (0, 13, 30):
        key = f"leaves{at}"
        placement = placement.model_copy(update={"placement_id": key, "token": f"token-{key}"})
        leaving = Inside(fleet, tmp_path / key, **narrow)

        def leave_soon(executor, key=key, at=at):
            def on_report(reported, report):
                if max(reported.step.values()) >= at:
                    executor.handle_command(Detach(placement_id=key, keep=True))

            fleet.on_report = on_report

        (left,) = leaving.run(placement, prepare=leave_soon)
        assert [(e.placement_id, e.lost) for e in leaving.ended] == [(key, False)]
        assert isinstance(left.events[-1], Detached)
        unfinished = {job for job in left.status if job not in left.ended}
        assert unfinished, "it left before its end"
        kept = {job: ref.step for job, ref in left.checkpoints.items() if job in unfinished}
        assert kept == {job: left.step[job] for job in unfinished if left.step[job]}
        _merge(curves, manifests, left)
        placement = resumed(left, "rest")
    fleet.on_report = lambda reported, report: None
    (rest,) = Inside(fleet, tmp_path / "rest", **narrow).run(placement)
    _merge(curves, manifests, rest)
    assert curves == unbroken.curves
    assert {job: m.files for job, m in manifests.items()} == {job: m.files for job, m in unbroken.manifests.items()}


def _merge(curves, manifests, reported):
    for key, points in reported.curves.items():
        assert not curves.get(key, {}).keys() & points.keys(), "no step is trained twice"
        curves.setdefault(key, {}).update(points)
    manifests.update(reported.manifests)


def test_asked_to_leave_while_it_is_prepared_it_goes_at_once_and_its_neighbour_stays(fleet, placing, tmp_path):
    first, second = placing(SPACE, early_exit=CALM, training={"epochs": 50}), placing(SPACE, early_exit=CALM)
    gone, whole = Inside(fleet, tmp_path).run(
        first, second, prepare=lambda executor: executor.handle_command(Detach(placement_id=first.placement_id, keep=True))
    )
    assert [event.kind for event in gone.events] == ["detached"]
    assert len(whole.ended) == 4


def test_past_its_lease_a_placement_is_given_back(fleet, placing, tmp_path):
    fleet.lease_seconds = 3.0
    inside = Inside(fleet, tmp_path)
    (reported,) = inside.run(placing(SPACE, early_exit=CALM, training={"epochs": 100}))
    assert [(e.placement_id, e.lost) for e in inside.ended] == [("p1", True)]
    assert "lease" in inside.ended[0].detail
    assert reported.ended == {}


def test_a_renewed_lease_goes_on(fleet, placing, tmp_path):
    fleet.lease_seconds = 3.0
    placement = placing(SPACE, early_exit=CALM, training={"epochs": 4})

    def renew(executor):
        executor.handle_command(Renew(placement_id="p1", deadline=0.0, token=placement.token))  # before it is attached: in vain
        fleet.on_report = lambda reported, report: executor.handle_command(
            Renew(placement_id="p1", deadline=1e12, token=placement.token)
        )

    (reported,) = Inside(fleet, tmp_path).run(placement, prepare=renew)
    assert len(reported.ended) == 4


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
