"""Several tenants on one executor: who joins disturbs nobody, and each step and second is shared as agreed."""

import logging
import re
import threading
from itertools import pairwise

import pytest

from contract.messages.placement_messages import Placement
from contract.messages.report_messages import Throughput
from tests.worker.corpus import rows
from tests.worker.inside import Inside
from worker.executor.placement.placement_run import PlacementRun
from worker.model.backbone import Backbone
from worker.model.plain.trainer import Trainer
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
    shared, loaded, passes, met, measured = [], [], [], threading.Event(), threading.Event()

    def watched(self, segments, *form):
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
                measured.set()
                met.wait(120)  # for a step of the loop
            elif thread != "preparations":
                passes.append(thread)
                if len(passes) > 10:  # of 40 steps: on a busy machine the joiner is slow to come
                    measured.wait(5)
            return real(self, segments, *form)
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
    names = ("base", "checkpoints", "rows", "kernels", "memory profile", "revision", "first weights")
    assert re.search(r"[\d.]+ s \(" + ", ".join(rf"{name} [\d.]+" for name in names), parts)
    assert any(re.match(rf"placement {joiner.placement_id}: first optimizer step [\d.]+ s after attach", line) for line in said)


# ---- fair steps --------------------------------------------------------------------------------------------------------


def steps_by_task() -> tuple[list[tuple[str, int]], object]:
    """Every training loss in the order in which the executor made them, as (placement, step)."""
    made: list[tuple[str, int]] = []
    real = PlacementRun.trained

    def noted(self, steps):
        (stepped,) = steps  # on one device
        made.extend((self.key, self[key.job].step + 1) for key in stepped.losses if key.placement == self.key)
        real(self, steps)

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
    monkeypatch.setattr(PlacementRun, "trained", noted)
    both = Inside(fleet, tmp_path / "both", **narrow).run(long, short, together=True)
    for one, other in zip(alone, both, strict=True):
        assert ends(one) == ends(other)
    order = [key for key, _ in made]
    turns = [at for at, key in enumerate(order) if key == long.placement_id]
    between = [order[a:b].count(short.placement_id) for a, b in pairwise(turns)]
    assert max(between) >= 4, "the other steps while the long one is in the midst of a step"
    assert order.count(short.placement_id) > len(turns)


def test_on_a_device_that_works_by_itself_tenants_take_steps_in_a_row(fleet, placing, tmp_path, monkeypatch):
    """Several whole steps of all of them, launched before earlier losses are read, cut short for who joins; one whose rate
    ruins it ends meanwhile. Each task is what it is alone, to the bit."""
    rates = ([3e-3], [1e-3, 1e20], [2e-3])
    placements = []
    for tenant, (rate, steps) in enumerate(zip(rates, (300, 300, 60), strict=True)):
        spec = {"early_exit": {"policy": "none", "eval_every": 100}, "training": {"max_steps": steps, "epochs": 100}}
        placements.append(of_tenant(placing(JOB | {"learning_rate": rate}, **spec), str(tenant)))
    alone = [ends(Inside(fleet, tmp_path / f"{at}").run(again(p, f"r{at}"))[0]) for at, p in enumerate(placements)]
    counts, real = [], Replicas.step

    def step(self, jobs, slices, count, on_progress):
        steps, unrunnable = real(self, jobs, slices, count, on_progress)
        counts.append((len({job.key.placement for job, _ in jobs}), count, len(steps)))
        return steps, unrunnable

    monkeypatch.setattr(Replicas, "step", step)
    monkeypatch.setattr(Trainer, "launches_ahead", True)
    for name in ("ROUND_SECONDS", "_SHORT_ALONE_SECONDS"):
        monkeypatch.setattr(f"worker.executor.step_scheduler.{name}", 1e9)
    reported = Inside(fleet, tmp_path / "all").run(*placements[:2], joining=placements[2:], after=1, together=True)
    assert [ends(one) for one in reported] == alone
    assert alone[1][2] == {0: "job_completed", 1: "job_exited"}
    assert max(took for tasks, _, took in counts if tasks == 2) > 1
    assert max(took for tasks, _, took in counts if tasks == 3) > 1
    assert any(took < count for tasks, count, took in counts if tasks == 2), "who joins is not kept waiting"


def test_a_tenant_with_many_tasks_does_not_slow_down_one_with_one(fleet, placing, tmp_path, monkeypatch):
    """A micro-batch holds one task's step at a time, so that turns are seen: one tenant has three tasks, the other one."""
    spec = {"early_exit": CALM, "training": {"max_steps": 24}}
    one = of_tenant(placing(JOB, **spec), "one")
    many = [of_tenant(placing(JOB, **spec), "many") for _ in range(3)]
    made, noted = steps_by_task()
    monkeypatch.setattr(PlacementRun, "trained", noted)
    Inside(fleet, tmp_path, worker_step_tokens=160).run(one, *many)
    last = max(at for at, (key, _) in enumerate(made) if key == one.placement_id)
    theirs = sum(key != one.placement_id for key, _ in made[:last])
    assert theirs <= 1.6 * 24, "together they get about what the one gets"


def test_gpu_seconds_are_split_by_tokens_and_add_up(fleet, placing, tmp_path, monkeypatch):
    spec = {"early_exit": CALM, "training": {"max_steps": 12}}
    placements = [of_tenant(placing(JOB | {"batch_size": [size]}, **spec), f"t{size}") for size in (1, 2, 8)]
    whole, real = [], Replicas.step

    def timed(self, *order):
        (stepped,), hopeless = real(self, *order)
        whole.append((stepped.seconds, {group: work.tokens for group, work in stepped.work.items()}))
        return [stepped], hopeless

    monkeypatch.setattr(Replicas, "step", timed)
    reported = Inside(fleet, tmp_path).run(*placements)
    shares = {r.placement.placement_id: sum(w.share_seconds for w in r.of(Throughput)) for r in reported}
    assert sum(shares.values()) == pytest.approx(sum(seconds for seconds, _ in whole), rel=1e-6)
    for key, share in shares.items():
        own = sum(seconds * tokens[key] / sum(tokens.values()) for seconds, tokens in whole if key in tokens)
        assert share == pytest.approx(own, rel=1e-6)


def test_a_report_says_beside_whom_its_slowdown_was_measured(fleet, placing, tmp_path, monkeypatch):
    monkeypatch.setattr("worker.executor.step_scheduler._MEASURED_SECONDS", 0.0)
    spec = {"early_exit": CALM, "training": {"max_steps": 12}}
    one, other = of_tenant(placing(JOB, **spec), "one"), of_tenant(placing(JOB, **spec), "other")
    both = Inside(fleet, tmp_path).run(one, other, together=True)
    for reported, neighbour in zip(both, (other, one), strict=True):
        told = {work.beside for work in reported.of(Throughput) if work.slowdown is not None}
        assert told == {(neighbour.placement_id,)}
        assert {work.beside for work in reported.of(Throughput) if work.slowdown is None} <= {()}


# ---- isolation ---------------------------------------------------------------------------------------------------------


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
