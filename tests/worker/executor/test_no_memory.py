"""Memory that runs out while an executor loads, measures, grows its arena or trains: allocations that really fail, one by one.

A limit stands for a small device: beyond it, PyTorch is asked for more memory than any machine has, so that what is raised is
what its allocator raises.
"""

import math

import pytest
import torch

from contract.job_config import MODULES
from contract.messages.report_messages import ActivationsChosen, PlacementFailed
from tests.worker.corpus import rows
from tests.worker.inside import Inside
from worker.adapters import arena_adapters
from worker.model import arena as arenas
from worker.model.arena import Arena
from worker.model.arena_layout import Target
from worker.model.backbone import Backbone
from worker.model.plain.trainer import Trainer

CALM = {"policy": "none", "eval_every": 4}
JOB = {"rank": [8], "batch_size": [4]}
LONG = [{"prompt": f"{n}", "completion": f" sheep {n}" * 90} for n in range(6)]


def exhaust():
    """Fails as an allocation fails."""
    torch.empty(1 << 60, dtype=torch.uint8)


@pytest.fixture
def limits(monkeypatch):
    """Tokens of the longest pass that finds memory, by whether it recomputes; and rows of the largest arena."""
    has = {False: math.inf, True: math.inf, "rows": math.inf, "profiles": True, "refused": []}
    real, enlarged = Trainer._train_pass, arenas._enlarged

    def small(self, segments, recompute, *form):
        tokens = sum(example.length for segment in segments for example in segment.examples)
        if tokens > has[recompute] and (has["profiles"] or any(segment.slot is not None for segment in segments)):
            for segment in segments:  # what a pass leaves behind that ends half-way
                if segment.slot is not None:
                    self.arena.grad[segment.slot.used].fill_(float("nan"))
            has["refused"].append((tokens, recompute))
            exhaust()
        return real(self, segments, recompute, *form)

    def grown(buffer, count):
        if count > has["rows"]:
            has["refused"].append(count)
            exhaust()
        return enlarged(buffer, count)

    monkeypatch.setattr(Trainer, "_train_pass", small)
    monkeypatch.setattr(arenas, "_enlarged", grown)
    return has


def again(placement, key="p2", **update):
    return placement.model_copy(update={"placement_id": key, "token": f"token-{key}", **update})


def fates(reported):
    return {job: event.kind for job, event in reported.ended.items()}


def same_curves(one, other, rel):
    assert list(one.curves) == list(other.curves)
    for key, curve in one.curves.items():
        assert list(other.curves[key].values()) == pytest.approx(list(curve.values()), rel=rel), key


# ---- measuring ---------------------------------------------------------------------------------------------------------


def test_a_profile_without_memory_is_measured_over_shorter_passes(fleet, placing, tmp_path, limits):
    placement = placing({**JOB, "learning_rate": [1e-2, 1e-3]}, early_exit=CALM, training={"max_steps": 4})
    (wanted,) = Inside(fleet, tmp_path / "large").run(placement)
    limits[False] = limits[True] = 300
    (reported,) = Inside(fleet, tmp_path / "small").run(again(placement))
    assert (384, False) in limits["refused"], "the profile's second pass"
    assert fates(reported) == {0: "job_completed", 1: "job_completed"}
    same_curves(wanted, reported, rel=1e-4)


def test_a_base_that_leaves_no_memory_for_any_pass_fails_the_task_once_with_its_numbers(fleet, placing, tmp_path, limits):
    limits[False] = limits[True] = 20
    inside = Inside(fleet, tmp_path)
    (reported,) = inside.run(placing({**JOB, "learning_rate": [1e-2]}))
    (failed,) = reported.of(PlacementFailed)
    assert "leaves no memory for a pass of" in failed.error
    assert "MiB" in failed.error
    assert [ended.lost for ended in inside.ended] == [False]


# ---- loading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failures", [1, 2])
def test_a_load_without_memory_is_tried_again_then_left_to_others(fleet, placing, tmp_path, monkeypatch, failures):
    real, tried = Backbone.load, []

    def load(*args):
        tried.append(args)
        if len(tried) <= failures:
            exhaust()
        return real(*args)

    monkeypatch.setattr(Backbone, "load", load)
    inside = Inside(fleet, tmp_path)
    (reported,) = inside.run(placing({**JOB, "learning_rate": [1e-2]}, early_exit=CALM, training={"max_steps": 1}))
    assert len(tried) == 2
    if failures == 1:
        assert fates(reported) == {0: "job_completed"}
    else:
        assert not reported.ended
        assert not reported.of(PlacementFailed), "the task is not to blame"
        assert [(ended.lost, "something else has it" in ended.detail) for ended in inside.ended] == [(True, True)]


def test_a_base_larger_than_the_memory_is_not_even_tried(fleet, placing, tmp_path, monkeypatch):
    monkeypatch.setattr(Backbone, "load", lambda *args: pytest.fail("it was tried"))
    inside = Inside(fleet, tmp_path, worker_memory_bytes=2**17)
    (reported,) = inside.run(placing({**JOB, "learning_rate": [1e-2]}))
    (failed,) = reported.of(PlacementFailed)
    assert "its weights alone take" in failed.error
    assert "this worker may use 0 MiB" in failed.error
    assert "nf4" in failed.error
    assert [ended.lost for ended in inside.ended] == [False]


# ---- growing the arena -------------------------------------------------------------------------------------------------


def test_an_arena_that_cannot_grow_holds_fewer_jobs_at_a_time(fleet, placing, tmp_path, limits):
    placement = placing({**JOB, "learning_rate": [1e-2, 1e-3, 3e-3, 1e-4]}, early_exit=CALM, training={"max_steps": 4})
    (wanted,) = Inside(fleet, tmp_path / "large").run(placement)
    limits["rows"] = 16
    (reported,) = Inside(fleet, tmp_path / "small").run(again(placement))
    assert max(limits["refused"]) == 64, "all four and as many spare rows, then half of that"
    assert set(fates(reported).values()) == {"job_completed"}
    assert dict(reported.curves) == dict(wanted.curves)


def test_an_adapter_too_large_for_the_arena_fails_alone_with_its_numbers(fleet, placing, tmp_path, limits):
    limits["rows"] = 40
    space = {"learning_rate": [1e-3], "rank": [8, 64], "batch_size": [4]}
    (reported,) = Inside(fleet, tmp_path).run(placing(space, early_exit=CALM, training={"max_steps": 4}))
    assert fates(reported) == {0: "job_completed", 1: "job_failed"}
    assert "64 arena rows of an adapter of rank 64" in reported.ended[1].error
    assert "MiB" in reported.ended[1].error


def test_after_one_that_is_too_large_for_an_empty_arena_the_others_train(fleet, placing, tmp_path, limits):
    limits["rows"] = 40
    space = {"learning_rate": [1e-3], "rank": [64, 16], "batch_size": [16]}
    placement = placing(space, early_exit=CALM, training={"max_steps": 4})
    (reported,) = Inside(fleet, tmp_path, worker_step_tokens=128).run(placement)  # so that one starts at a time
    assert fates(reported) == {0: "job_failed", 1: "job_completed"}


def test_an_arena_that_ran_out_half_way_is_as_it_was(limits):
    arena = Arena([Target(f"layers.0.{module}", 0, module, 20, 20) for module in MODULES], 8)
    slot = arena.attach(8, 8)
    for place, buffer in enumerate([arena.master, arena.grad, *arena.moments.buffers]):
        buffer[slot.used] = 1.0 + place
    before, seen = arena.snapshot(slot), []

    def third(buffer, count):
        seen.append(count)
        if len(seen) == 3:
            exhaust()
        return buffer.new_zeros(count, *buffer.shape[1:]).index_copy_(0, torch.arange(len(buffer)), buffer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arenas, "_enlarged", third)
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            arena.grow(24)
    held = {buffer.untyped_storage().nbytes() for buffer in (arena.master, arena.grad, *arena.moments.buffers)}
    assert held == {8 * arena.layout.width * 4}, "no buffer keeps the memory that it had got"
    assert {len(buffer) for buffer in (arena.master, arena.grad, *arena.moments.buffers)} == {8}
    after = arena.snapshot(slot)
    assert torch.equal(after.weights, before.weights)
    assert torch.equal(after.exp_avg_sq, before.exp_avg_sq)
    arena.grow(24)
    assert arena.rows == 24


# ---- steps -------------------------------------------------------------------------------------------------------------


def test_a_task_recomputes_once_its_longest_row_found_no_memory(fleet, placing, tmp_path, limits):
    spec = {"early_exit": CALM, "training": {"max_steps": 4, "max_seq_len": 200}}
    placement = placing({**JOB, "learning_rate": [1e-3, 1e-2]}, LONG, **spec)
    (wanted,) = Inside(fleet, tmp_path / "large").run(placement)
    limits.update({False: 150, "profiles": False})
    (reported,) = Inside(fleet, tmp_path / "small").run(again(placement))
    assert (199, False) in limits["refused"]
    assert [event.recompute for event in reported.of(ActivationsChosen)] == [False, True]
    assert "a sequence of 199 tokens found no memory while they were kept" in reported.of(ActivationsChosen)[1].reason
    assert set(fates(reported).values()) == {"job_completed"}
    same_curves(wanted, reported, rel=1e-4)


def test_what_one_task_met_is_known_of_the_next(fleet, placing, tmp_path, limits):
    spec = {"early_exit": CALM, "training": {"max_steps": 4, "max_seq_len": 200}}
    short = placing({**JOB, "learning_rate": [1e-2]}, rows(16), **spec)
    long = placing({**JOB, "learning_rate": [1e-3]}, LONG, **spec)
    wanted = Inside(fleet, tmp_path / "large").run(short, long)
    limits.update({False: 150, "profiles": False})
    found = Inside(fleet, tmp_path / "small").run(again(short, "p3"), again(long, "p4"))
    assert [event.recompute for event in found[0].of(ActivationsChosen)] == [False], "its rows are short"
    assert found[1].of(ActivationsChosen)[-1].recompute
    for reported, same in zip(found, wanted, strict=True):
        assert set(fates(reported).values()) == {"job_completed"}
        same_curves(same, reported, rel=1e-4)


def test_a_task_that_waited_while_another_met_its_limit_tries_once_it_is_alone(fleet, placing, tmp_path, limits):
    spec = {"early_exit": CALM, "training": {"max_steps": 6, "max_seq_len": 200}}
    short = placing({**JOB, "batch_size": [16], "learning_rate": [1e-2]}, rows(16), **spec)
    long = placing({**JOB, "learning_rate": [1e-3]}, LONG, **spec)
    limits.update({False: 150, "profiles": False, "rows": 8})
    found = Inside(fleet, tmp_path).run(short, long, together=True)
    assert [fates(reported) for reported in found] == [{0: "job_completed"}] * 2
    assert found[1].of(ActivationsChosen)[-1].recompute


@pytest.mark.usefixtures("limits")
def test_recomputing_is_chosen_where_it_is_what_fits(fleet, placing, tmp_path, monkeypatch):
    monkeypatch.setattr("worker.replicas.memory_profile._resident", lambda: 0)
    placement = placing({**JOB, "learning_rate": [1e-2]}, LONG, early_exit=CALM, training={"max_steps": 2, "max_seq_len": 200})
    (wanted,) = Inside(fleet, tmp_path, worker_memory_bytes=2**30).run(placement)
    (chosen,) = wanted.of(ActivationsChosen)
    assert not chosen.recompute
    need = int(chosen.reason.split(" takes ")[1].split(" MiB")[0])
    assert need > 0
    # A little less than what the row takes with its activations kept, under the margin and beside the share for parked jobs.
    memory = int(need * 2**20 * 0.95 / 0.9 * 8 / 7)
    (reported,) = Inside(fleet, tmp_path, worker_memory_bytes=memory).run(again(placement))
    (chosen,) = reported.of(ActivationsChosen)
    assert chosen.recompute
    assert f"takes {need} MiB if they are kept" in chosen.reason
    assert fates(reported) == {0: "job_completed"}
    same_curves(wanted, reported, rel=1e-4)


def test_a_task_too_large_is_refused_before_its_first_pass_and_its_neighbour_notices_nothing(
    fleet, placing, tmp_path, monkeypatch
):
    monkeypatch.setattr("worker.replicas.memory_profile._resident", lambda: 0)
    spec = {"early_exit": CALM, "training": {"max_steps": 4, "max_seq_len": 250}}
    good = placing({**JOB, "learning_rate": [1e-2, 1e-3]}, rows(16), **spec)
    huge = placing({"learning_rate": [1e-3], "rank": [256], "batch_size": [4]}, LONG, **spec)
    settings = {"worker_memory_bytes": 24 * 2**20, "worker_step_tokens": 128}
    (alone,) = Inside(fleet, tmp_path / "alone", **settings).run(good)
    inside = Inside(fleet, tmp_path / "both", **settings)
    reported, refused = inside.run(again(good, "p3"), again(huge, "p4"))
    assert dict(reported.curves) == dict(alone.curves), "to the bit"
    assert fates(refused) == {0: "job_failed"}
    assert not refused.curves
    said = refused.ended[0].error
    for part in (
        "needs ",
        " MiB even alone",
        "256 adapter rows",
        "sequences of up to 249 tokens",
        "this worker may use",
        "take ",
    ):
        assert part in said
    assert [ended.lost for ended in inside.ended] == [False, False]


# ---- giving back -------------------------------------------------------------------------------------------------------


def test_the_arena_shrinks_when_a_task_leaves(fleet, placing, tmp_path, monkeypatch):
    sizes, real = [], Arena.shrink

    def noted(self, spare=0):
        given = real(self, spare)
        sizes.append((given, self.rows))
        return given

    monkeypatch.setattr(Arena, "shrink", noted)
    monkeypatch.setattr(arena_adapters, "_SPARE", 0.0)
    spec = {"early_exit": CALM, "training": {"max_steps": 2}}
    brief = placing({"learning_rate": [1e-3], "rank": [64], "batch_size": [4]}, **spec)
    steady = placing({**JOB, "learning_rate": [1e-2]}, early_exit=CALM, training={"max_steps": 12})
    (alone,) = Inside(fleet, tmp_path / "alone").run(steady)
    sizes.clear()
    _, beside = Inside(fleet, tmp_path / "beside").run(again(brief, "p3"), again(steady, "p4"), together=True)
    assert sizes[0] == (64, 8), "what the larger adapter had, though the other lay behind it"
    assert dict(beside.curves) == dict(alone.curves), "it was moved while it trained, to the bit"
