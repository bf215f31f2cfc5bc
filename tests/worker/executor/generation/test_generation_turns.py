"""Turns of evaluations and completions beside training, by a clock that passes move: nothing here depends on the machine."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from contract.messages.report_messages import TextsEvaluated
from tests.worker.corpus import rows
from tests.worker.executor.completion_work import chat, over
from tests.worker.executor.text_evaluations import ASKED, CALM, SPACE
from tests.worker.inside import Inside
from worker.executor.generation.generation_turns import GenerationTurns
from worker.generate.generator import Generator
from worker.policy.generation_share import SAVED_SECONDS, GenerationClass
from worker.policy.job_record import JobKey
from worker.replicas.replica_set import Replicas

pytestmark = pytest.mark.usefixtures("measured_once")

SHARE, STEP, PASS = 0.1, 1.0, 0.3  # a pass takes what three steps earn


class Batch:
    """Serves these tenants, and has so many passes left to run."""

    def __init__(self, clock: list[float], tenants: set[str], passes: int = 10**9) -> None:
        self.clock, self.served, self.left, self.ran = clock, tenants, passes, 0

    @property
    def tenants(self) -> set[str]:
        return self.served if self.left else set()

    held_bytes = 0

    def give_way(self) -> bool:
        return bool(self.left)

    def advance(self, replicas: Any, room: Any) -> None:
        self.clock[0] += PASS
        self.left -= 1
        self.ran += 1


def runs(*jobs: int) -> Any:
    """Jobs that train."""
    return [SimpleNamespace(key=JobKey("p", job)) for job in jobs]


def turns(evaluations: Batch, completions: Batch, steps: int) -> None:
    """Run both beside so many steps."""
    assert evaluations.clock is completions.clock
    turns = GenerationTurns(SHARE, evaluations, completions, lambda: evaluations.clock[0])
    for _ in range(steps):
        turns.advance(None, runs(0))  # type: ignore[arg-type]  # for the batches alone
        turns.trained(STEP)


def test_an_evaluation_of_one_tenant_leaves_the_questions_of_others_their_part() -> None:
    clock = [0.0]
    long, asked = Batch(clock, {"a"}), Batch(clock, {"b"}, passes=40)
    turns(long, asked, 1000)
    assert asked.ran == 40
    assert 40 < long.ran <= (SHARE * STEP * 1000 + 2 * SAVED_SECONDS) / PASS + 2 - 40


def test_without_training_each_class_has_a_pass_in_turn() -> None:
    clock = [0.0]
    long, asked = Batch(clock, {"a"}), Batch(clock, {"b"}, passes=3)
    alone = GenerationTurns(0.0, long, asked, lambda: clock[0])
    for _ in range(10):
        alone.advance(None, [])  # type: ignore[arg-type]  # for the batches alone
    assert (long.ran, asked.ran) == (10, 3)


def test_evaluations_that_gave_way_twice_wait_for_other_jobs_and_questions_go_on() -> None:
    clock = [0.0]
    long, asked = Batch(clock, {"a"}), Batch(clock, {"b"})
    held = GenerationTurns(0.5, long, asked, lambda: clock[0])

    def passes(*jobs: int) -> tuple[bool, bool]:
        before = long.ran, asked.ran
        for _ in range(20):
            held.advance(None, runs(*jobs))  # type: ignore[arg-type]  # for the batches alone
            held.trained(STEP)
        return long.ran > before[0], asked.ran > before[1]

    assert passes(0) == (True, True)
    assert held.give_way()
    assert passes(0) == (True, True)
    assert held.give_way()
    assert passes(0) == (False, True)
    assert passes(0, 1) == (True, True)
    assert passes(0) == (True, True), "others trained meanwhile"
    assert held.give_way()
    assert held.give_way()
    assert passes(0) == (False, True)
    assert passes() == (True, True), "nothing trains"


def test_an_evaluation_slows_a_neighbours_steps_by_the_share_alone_and_lets_it_ask(
    fleet, placing, tmp_path, monkeypatch
) -> None:
    """Two tenants on one executor: texts of one, at its start and at milestones, take no more passes of the other's steps than
    the share; the other's question is answered meanwhile; and no bit of its training differs."""
    asked = {**ASKED, "max_new_tokens": 60, "max_prompts": 4, "milestones": [0.25, 0.5]}
    ours = placing(SPACE, rows(40, seed=1), early_exit=CALM, evaluation=asked, training={"epochs": 3})
    theirs = placing({**SPACE, "learning_rate": [1e-3]}, rows(40, seed=2), early_exit=CALM, training={"epochs": 15})
    (alone,) = Inside(fleet, tmp_path / "alone").run(theirs)
    clock, seen, counts, step, generate = [0.0], list[Counter[str]](), Counter[str](), Replicas.step, Generator.step

    def stepping(self, jobs, *how):
        seen.append(counts.copy())
        counts["steps"] += 1
        (stepped,), lost = step(self, jobs, *how)
        stepped.seconds = STEP
        return [stepped], lost

    def generating(self):
        counts["passes"] += 1
        clock[0] += PASS
        return generate(self)

    monkeypatch.setattr(Replicas, "step", stepping)
    monkeypatch.setattr(Generator, "step", generating)
    pair = [
        one.model_copy(update={"placement_id": f"s{at}", "token": f"token-s{at}", "tenant_id": f"tenant{at}"})
        for at, one in enumerate((ours, theirs))
    ]
    fleet.asked.append(chat("q", tenant_id="tenant1", max_tokens=3))

    def timed(executor):
        executor._generation._clock = lambda: clock[0]

    settings = {"worker_completion_share": SHARE}
    evaluated, beside = Inside(fleet, tmp_path / "both", **settings).run(*pair, prepare=timed, paced=True)
    assert all(one.error is None for one in evaluated.of(TextsEvaluated))
    assert {(one.job, one.milestone) for one in evaluated.of(TextsEvaluated)} >= {(None, None), (0, None), (1, None)}
    assert over(fleet, "q")
    assert beside.curves == alone.curves
    first = seen[0]["passes"]
    for at in seen:
        earned = SHARE * STEP * at["steps"] + len(GenerationClass) * (SAVED_SECONDS + PASS)
        assert (at["passes"] - first) * PASS <= earned + 1e-9
    assert seen[-1]["passes"] - first > 0.5 * SHARE * STEP * seen[-1]["steps"] / PASS, "the share is used"
