"""The executor interrupted: killed and resumed, cut off from its service, told to stop or to leave, past its lease."""

import math
import random
import threading
from collections.abc import Callable

import pytest

from contract.messages.report_messages import (
    Checkpointed,
    Detached,
)
from contract.states import JobStatus
from tests.worker.executor.test_executor import CALM, SPACE
from tests.worker.inside import Inside, resumed
from worker.api_client import PlacementLink
from worker.boot_clock import boot_now
from worker.executor.placement.placement_run import PlacementRun
from worker.executor.preparation.placement_preparation import Prepared
from worker.executor.rung_ranks import standings
from worker.executor.training_loop import Executor
from worker.pipe_messages import Detach, Renew, Stop

pytestmark = pytest.mark.usefixtures("measured_once")


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
        (reported,) = inside.run(placement, paced=not number)  # as fast as it may be, it has as many reports as steps
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


def test_jobs_resume_though_their_checkpoints_have_left_the_nodes_cache(fleet, placing, tmp_path):
    """They may wait for rows for days, while the cache drops what is a day old, or a job with an equal checkpoint ends."""
    placement = placing(SPACE, early_exit=CALM, training={"epochs": 2})
    (unbroken,) = Inside(fleet, tmp_path / "unbroken").run(placement)
    fleet.on_report = lambda reported, report: setattr(reported, "live", len(reported.checkpoints) < 4)
    again = placement.model_copy(update={"placement_id": "lost", "token": "token-lost"})
    (lost,) = Inside(fleet, tmp_path / "lost", worker_checkpoint_seconds=0.05).run(again, paced=True)
    fleet.on_report = lambda reported, report: None
    assert len(lost.checkpoints) == 4

    def without_cached_objects(executor: Executor) -> None:
        opened = executor._attached._opened

        def emptied(task: PlacementRun, prepared: Prepared) -> None:
            gone = [*(tmp_path / "again").glob("*/tenants/*/objects/*")]
            assert len(gone) == 4, "fetched from the service"
            for path in gone:
                path.unlink()
            opened(task, prepared)

        executor._attached._opened = emptied

    inside = Inside(fleet, tmp_path / "again")
    (reported,) = inside.run(resumed(lost, "again"), prepare=without_cached_objects)
    for of_job, points in reported.curves.items():
        assert points.items() <= unbroken.curves[of_job].items()
    assert {job: m.files for job, m in reported.manifests.items()} == {job: m.files for job, m in unbroken.manifests.items()}
    assert not [*inside.settings.scratch.glob("executors/*/*")], "each file goes with its job"


def test_an_ended_job_is_ranked_at_the_first_rung_by_what_it_was_ranked_by(fleet, placing, tmp_path):
    """The loss of a full evaluation, as the others are; its curve there is of the trend's rows."""
    placement = placing(SPACE, early_exit={"policy": "asha", "warmup_fraction": 0.2, "reduction_factor": 2})
    known = {"status": JobStatus.COMPLETED, "promoted": True, "warmup_val_loss": 2.0, "rung_losses": [1.5, 1.25]}
    jobs = [job.model_copy(update=known) if job.index == 0 else job for job in placement.jobs]
    found = []

    def looked(executor: Executor) -> None:
        opened = executor._attached._opened

        def look(task: PlacementRun, prepared: Prepared) -> None:
            found.extend(standings(task))
            opened(task, prepared)

        executor._attached._opened = look

    Inside(fleet, tmp_path).run(placement.model_copy(update={"jobs": jobs}), prepare=looked)
    assert {one.job: one.losses for one in found} == {0: (2.0, 1.25), 1: (), 2: (), 3: ()}


def test_the_cut_after_a_restart_is_the_cut_without_one(fleet, placing, tmp_path):
    """The best job has ended by then, on another executor: the rest are compared with it row by row all the same."""
    spec = {"training": {"epochs": 2}, "early_exit": {"warmup_fraction": 0.3, "keep_fraction": 0.5, "tau_gap": 10.0}}
    placement = placing(SPACE, **spec)
    (unbroken,) = Inside(fleet, tmp_path / "unbroken").run(placement)
    best = min(unbroken.warmup_losses, key=unbroken.warmup_losses.__getitem__)
    cut = {job: end.evidence for job, end in unbroken.ended.items() if end.kind == "job_exited"}
    assert any("paired" in evidence["pattern"] for evidence in cut.values()), "by rank alone, more would be kept"

    known = {"status": JobStatus.COMPLETED, "promoted": True, "warmup_val_loss": unbroken.warmup_losses[best]}
    known["boundary_scores"] = unbroken.boundary_scores[best]
    jobs = [job.model_copy(update=known) if job.index == best else job for job in placement.jobs]
    restarted = placement.model_copy(update={"placement_id": "again", "token": "token-again", "jobs": jobs})
    (reported,) = Inside(fleet, tmp_path / "again").run(restarted)
    assert {job: end.evidence for job, end in reported.ended.items() if end.kind == "job_exited"} == cut


def test_an_outage_in_the_middle_changes_nothing(fleet, placing, tmp_path):
    placement = placing(SPACE, early_exit=CALM, training={"epochs": 2})
    (calm,) = Inside(fleet, tmp_path / "calm").run(placement)
    again = placement.model_copy(update={"placement_id": "again", "token": "token-again"})
    outages = iter([2, 2])  # until so many requests were refused

    def refusals() -> int:
        return sum(status == 503 for _, _, status in fleet.requests)

    def come_back(refused: int) -> None:
        fleet.until(lambda: refusals() >= refused)
        fleet.down = False

    def go_down(reported, report):
        requests = next(outages, None) if reported.step[0] >= 2 else None
        if requests is not None:
            fleet.down = True
            threading.Thread(target=come_back, args=[refusals() + requests]).start()

    fleet.on_report = go_down
    (hurt,) = Inside(fleet, tmp_path / "hurt", worker_checkpoint_seconds=0.05).run(again)
    assert refusals() >= 4
    assert hurt.curves == calm.curves
    assert {job: m.files for job, m in hurt.manifests.items()} == {job: m.files for job, m in calm.manifests.items()}


def test_told_to_stop_it_leaves_checkpoints_of_all_jobs(fleet, placing, tmp_path):
    placement = placing(SPACE, early_exit=CALM, training={"epochs": 20})
    inside = Inside(fleet, tmp_path)

    def stop_soon(executor):
        def on_report(reported, report):
            if reported.step[0] >= 5:
                executor.handle_command(Stop(seconds=120))

        fleet.on_report = on_report

    (reported,) = inside.run(placement, prepare=stop_soon, paced=True)
    assert inside.ended == [], "the daemon gives the placements back itself"
    (checkpointed,) = reported.of(Checkpointed)
    steps = {ref.step for ref in checkpointed.jobs.values()}
    assert set(checkpointed.jobs) == {0, 1, 2, 3}
    assert steps == {reported.step[0]}, "one moment for all, and nothing after it"


def test_told_to_stop_while_adapters_are_stored_it_stores_and_tells_them(fleet, placing, tmp_path, monkeypatch):
    put, stop, told, stopping = PlacementLink.put, Executor._stop, [], threading.Event()

    def late(self, grant, path):
        told[0].handle_command(Stop(seconds=120))
        assert stopping.wait(60)
        put(self, grant, path)

    def begun(self, seconds):
        stopping.set()
        stop(self, seconds)

    monkeypatch.setattr(PlacementLink, "put", late)
    monkeypatch.setattr(Executor, "_stop", begun)
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE, early_exit=CALM), prepare=told.append)
    assert set(reported.manifests) == set(reported.ended) == {0, 1, 2, 3}


def test_a_placement_that_was_ended_leaves_and_others_stay(fleet, placing, tmp_path):
    first, second = placing(SPACE, early_exit=CALM, training={"epochs": 50}), placing(SPACE, early_exit=CALM)
    inside = Inside(fleet, tmp_path)

    def detach_soon(executor):
        def on_report(reported, report):
            if reported.placement is first and reported.step[0] >= 2:
                executor.handle_command(Detach(placement_id=first.placement_id))

        fleet.on_report = on_report

    cut, whole = inside.run(first, second, prepare=detach_soon, paced=True)
    assert {e.placement_id: e.lost for e in inside.ended} == {"p1": False, "p2": False}
    assert len(whole.ended) == 4
    assert cut.ended == {}


def test_asked_to_leave_it_loses_no_step_and_goes_on_elsewhere_bit_for_bit(fleet, placing, tmp_path):
    """In warmup, near its boundary, behind it: the jobs' states are stored at one moment, all is told, and then it goes."""
    spec = {"training": {"epochs": 8}, "early_exit": {"warmup_fraction": 0.3, "keep_fraction": 0.5, "tau_gap": 10.0}}
    narrow = {"worker_step_tokens": 300}
    placement = placing(SPACE, **spec)
    (unbroken,) = Inside(fleet, tmp_path / "unbroken", **narrow).run(placement)
    curves, manifests = {}, {}
    for at in (0, 13, 20):
        key = f"leaves{at}"
        placement = placement.model_copy(update={"placement_id": key, "token": f"token-{key}"})
        leaving = Inside(fleet, tmp_path / key, **narrow)

        def leave_soon(executor, key=key, at=at):
            def on_report(reported, report):
                if max(reported.step.values()) >= at:
                    executor.handle_command(Detach(placement_id=key, keep=True))

            fleet.on_report = on_report

        (left,) = leaving.run(placement, prepare=leave_soon, paced=True)
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


@pytest.fixture
def past_its_lease(fleet, monkeypatch) -> Callable[[], None]:
    """Lets the time of the leases that were given at first run out."""
    passed = [0.0]
    monkeypatch.setattr("worker.executor.placement.placement_lease.boot_now", lambda: boot_now() + passed[0])
    return lambda: passed.__setitem__(0, fleet.lease_seconds)


def test_past_its_lease_a_placement_is_given_back(fleet, placing, tmp_path, past_its_lease):
    inside = Inside(fleet, tmp_path)
    fleet.on_report = lambda reported, report: past_its_lease() if reported.step[0] >= 2 else None
    (reported,) = inside.run(placing(SPACE, early_exit=CALM, training={"epochs": 100}), paced=True)
    assert [(e.placement_id, e.lost) for e in inside.ended] == [("p1", True)]
    assert "lease" in inside.ended[0].detail
    assert reported.ended == {}


def test_a_renewed_lease_goes_on(fleet, placing, tmp_path, past_its_lease):
    placement = placing(SPACE, early_exit=CALM, training={"epochs": 4})

    def renew(executor):
        executor.handle_command(Renew(placement_id="p1", deadline=0.0, token=placement.token))  # never an earlier end

        def on_report(reported, report):
            if reported.step[0] >= 2:
                executor.handle_command(Renew(placement_id="p1", deadline=1e12, token=placement.token))
                past_its_lease()

        fleet.on_report = on_report

    (reported,) = Inside(fleet, tmp_path).run(placement, prepare=renew, paced=True)
    assert len(reported.ended) == 4
