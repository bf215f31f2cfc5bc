"""Text evaluations of several tasks in one batch: memory, costs, who leaves."""

import pytest

from contract.messages.report_messages import Detached, Throughput
from tests.worker.corpus import rows
from tests.worker.executor.text_evaluations import ASKED, CALM, SPACE, evaluated
from tests.worker.inside import Inside
from worker.adapters.arena_adapters import ArenaAdapters
from worker.adapters.arena_growth import NoRows
from worker.executor.evaluation.text_scoring import TextEvaluations
from worker.generate.generator import Generator
from worker.generate.paged_cache import PagedCache
from worker.generate.sequence import Sequence
from worker.pipe_messages import Detach
from worker.replicas import text_generation
from worker.replicas.replica_set import Replicas

pytestmark = pytest.mark.usefixtures("measured_once")


def leaves_room_for(monkeypatch, pages: int) -> None:
    """A device whose memory has room for so many pages of keys and values."""
    real = PagedCache.__init__

    def scarce(self, backbone, wanted, page_tokens):
        if wanted > pages:
            raise MemoryError("out of memory")
        real(self, backbone, wanted, page_tokens)

    monkeypatch.setattr(PagedCache, "__init__", scarce)


def sharing(*placements):
    """The same tasks, of different tenants."""
    named = ({"placement_id": f"s{at}", "token": f"token-s{at}", "tenant_id": str(at)} for at in range(len(placements)))
    return [one.model_copy(update=own) for one, own in zip(placements, named, strict=True)]


def test_who_asks_for_more_than_fits_fails_alone(fleet, placing, tmp_path, monkeypatch):
    """The others of the batch get their texts, and pay for nothing that was generated again."""
    modest = [placing(SPACE, rows(40, seed=seed), early_exit=CALM, evaluation=ASKED) for seed in (1, 2)]
    greedy = placing(SPACE, rows(40, seed=3), early_exit=CALM, evaluation={**ASKED, "max_new_tokens": 200})
    alone = [Inside(fleet, tmp_path / str(at)).run(one)[0] for at, one in enumerate(modest)]
    leaves_room_for(monkeypatch, 4)
    waits_for(monkeypatch, 3)
    first, failed, second = Inside(fleet, tmp_path / "together").run(*sharing(modest[0], greedy, modest[1]))
    assert all("no memory to generate one text at a time" in event.error for event in evaluated(failed).values())
    for shared, own in ((first, alone[0]), (second, alone[1])):
        assert set(evaluated(shared)) == {None, 0, 1}
        for job, event in evaluated(shared).items():
            assert (event.error, event.samples, event.tokens) == (None, evaluated(own)[job].samples, evaluated(own)[job].tokens)


def test_adapters_that_find_no_rows_together_are_asked_apart(fleet, placing, tmp_path, monkeypatch):
    (plenty,) = Inside(fleet, tmp_path / "a").run(placing(SPACE, early_exit=CALM, evaluation=ASKED))
    held, real, drop = [], Replicas.hold, ArenaAdapters.drop

    def scarce(self, rows, alpha):
        if held:
            raise NoRows("no rows are left")
        held.append(real(self, rows, alpha))
        return held[-1]

    def dropped(self, slot):
        held[:] = [one for one in held if one is not slot]
        drop(self, slot)

    monkeypatch.setattr(Replicas, "hold", scarce)
    monkeypatch.setattr(ArenaAdapters, "drop", dropped)
    waits_for(monkeypatch, 2, base=False)
    (short,) = Inside(fleet, tmp_path / "b").run(placing(SPACE, early_exit=CALM, evaluation=ASKED))
    for job in (None, 0, 1):
        assert evaluated(short)[job].samples == evaluated(plenty)[job].samples
    assert held == []


def waits_for(monkeypatch, count: int, base: bool = True) -> None:
    """The first batch has so many evaluations: of bases, or of adapters."""
    real, begun = TextEvaluations._begin, []

    def later(self, replicas):
        waiting = [asked for asked in self._waiting if (asked.run is None) == base]
        if begun or len(waiting) == count or (not base and len(waiting) < len(self._waiting)):
            begun.extend(waiting)
            real(self, replicas)

    monkeypatch.setattr(TextEvaluations, "_begin", later)


def test_each_pays_for_the_tokens_of_its_own_prompts_and_texts(fleet, placing, tmp_path, monkeypatch):
    short = placing(SPACE, rows(40, seed=1), early_exit=CALM, evaluation={**ASKED, "max_new_tokens": 2})
    long = placing(SPACE, rows(40, seed=2), early_exit=CALM, evaluation={**ASKED, "max_new_tokens": 60})
    alone = [Inside(fleet, tmp_path / str(at)).run(one)[0] for at, one in enumerate((short, long))]
    waits_for(monkeypatch, 2)
    together = Inside(fleet, tmp_path / "together").run(*sharing(short, long))
    for shared, own in zip(together, alone, strict=True):
        assert {job: event.tokens for job, event in evaluated(shared).items()} == {
            job: event.tokens for job, event in evaluated(own).items()
        }
        assert sum(work.evaluation_tokens for work in shared.of(Throughput)) == sum(
            work.evaluation_tokens for work in own.of(Throughput)
        )
    assert evaluated(together[1])[None].tokens > evaluated(together[0])[None].tokens + 3 * 40


def test_a_task_that_leaves_takes_its_own_texts_out_of_the_batch_alone(fleet, placing, tmp_path, monkeypatch):
    """The others' texts go on: nothing of theirs is generated again."""
    asked = {"early_exit": CALM, "evaluation": {**ASKED, "max_new_tokens": 60}}
    stays = placing(SPACE, rows(40, seed=1), **asked)
    leaves = placing(SPACE, rows(40, seed=2), **asked, training={"epochs": 100})  # still trains then
    (alone,) = Inside(fleet, tmp_path / "alone").run(stays)
    stays, leaves = sharing(stays, leaves)
    waits_for(monkeypatch, 2)
    made, executors, passes, real = [], [], [], Generator.step
    monkeypatch.setattr(text_generation, "Generated", lambda *what: made.append(Sequence(*what)) or made[-1])

    def leaving(self):
        passes.append(True)
        if len(passes) == 9:
            executors[0].handle_command(Detach(placement_id=leaves.placement_id, keep=True))
        return real(self)

    monkeypatch.setattr(Generator, "step", leaving)
    together, left = Inside(fleet, tmp_path / "together").run(stays, leaves, prepare=executors.append)
    assert left.of(Detached)
    assert None not in evaluated(left)
    for job, event in evaluated(together).items():
        assert (event.samples, event.tokens) == (evaluated(alone)[job].samples, evaluated(alone)[job].tokens)
    texts = 3 * (1 + len(evaluated(together)) + len(evaluated(left)))
    assert len(made) == texts
    assert sum(one.completion is None for one in made) == 3
