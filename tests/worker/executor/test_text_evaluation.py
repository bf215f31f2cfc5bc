"""Text evaluations in an executor: the base and every kept adapter are asked, in one batch, and what they say is reported."""

import json
import shutil

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from contract.messages.placement_messages import BaseModelRef
from contract.messages.report_messages import AdapterKept, Attached, Detached, JobCompleted, TextsEvaluated, Throughput
from contract.model_revision import revision_of
from contract.task_spec import TaskSpec
from tests.worker.corpus import jsonl, rows
from tests.worker.inside import Inside, resumed
from tests.worker.placer import placer
from worker.adapters.arena_adapters import ArenaAdapters
from worker.adapters.arena_growth import NoRows
from worker.data.dataset import load
from worker.data.evaluation_prompts import prompts_of
from worker.executor.evaluation.text_scoring import TextEvaluations
from worker.generate.batch_scheduler import GenerationLimits
from worker.generate.generator import Generator
from worker.generate.page_allocator import PageAllocator
from worker.generate.paged_cache import PagedCache
from worker.generate.plain_pass import PlainPass
from worker.generate.sequence import Sampling, Sequence
from worker.metrics import scoring
from worker.pipe_messages import Detach
from worker.replicas import text_generation
from worker.replicas.base_loader import load_base
from worker.replicas.replica_set import Replicas

SPACE = {"learning_rate": [1e-2, 3e-3], "rank": [8], "batch_size": [4]}
CALM = {"policy": "none", "eval_every": 4}
ASKED = {"metrics": [{"type": "exact_match"}, {"type": "rouge_l", "name": "rouge"}], "max_prompts": 3, "max_new_tokens": 9}


PAIRS = [
    {
        "input": {"messages": [{"role": "user", "content": f"how many, {n}?"}]},
        "preferred_output": [{"role": "assistant", "content": f"{n} pears"}],
        "non_preferred_output": [{"role": "assistant", "content": "none at all"}],
    }
    for n in range(40)
]


def evaluated(reported) -> dict[int | None, TextsEvaluated]:
    return {event.job: event for event in reported.of(TextsEvaluated)}


def test_the_base_and_every_kept_adapter_are_asked_before_it_is_stored(fleet, placing, tmp_path):
    placement = placing(SPACE, early_exit=CALM, evaluation=ASKED, training={"epochs": 2})
    (reported,) = Inside(fleet, tmp_path).run(placement)
    found = evaluated(reported)
    assert set(found) == {None, 0, 1}
    for job in (0, 1):
        order = [type(event) for event in reported.events if getattr(event, "job", None) == job]
        assert order.index(TextsEvaluated) < order.index(AdapterKept) < order.index(JobCompleted)
        assert found[job].step == reported.ended[job].best_step
    for event in found.values():
        assert (event.prompts, len(event.samples), event.error) == (3, 3, None)
        assert set(event.scores) == {"exact_match", "rouge"}
        for name, score in event.scores.items():
            assert event.prompt_scores[name] == [sample.scores[name] for sample in event.samples]
            assert score == pytest.approx(sum(event.prompt_scores[name]) / 3)
        assert event.tokens > 3
    assert [sample.reference for sample in found[0].samples] == [sample.reference for sample in found[None].samples]
    assert found[0].samples[0].text != found[None].samples[0].text


@pytest.mark.parametrize("precision", ["bf16", "nf4", "nf4_double"])
def test_texts_are_those_that_the_model_generates_by_itself(fleet, placing, tiny_base, tmp_path, precision):
    space = {"learning_rate": [1e-3], "rank": [4], "batch_size": [4]}
    placement = placing(space, early_exit=CALM, evaluation=ASKED, precision=precision)
    (reported,) = Inside(fleet, tmp_path).run(placement)
    base = load_base(tiny_base.model_copy(update={"precision": precision}), torch.device("cpu"))
    path = tmp_path / "rows.jsonl"
    path.write_bytes(fleet.files[placement.train_file.file_id])
    data = load(placement.spec, path, None, base.reader)
    prompts = prompts_of(data.validation, 3, base.decode)
    asked = [Sequence(prompt.tokens, Sampling(9)) for prompt in prompts]
    cache = PagedCache(base.trainer.backbone, 50, 16)
    Generator(
        PlainPass(base.trainer, cache), PageAllocator(50, 16), GenerationLimits(4, 100, 256), base.decode, base.end_tokens
    ).run(asked)
    said = evaluated(reported)[None].samples
    assert [one.completion.text for one in asked] == [sample.text for sample in said]
    assert [prompt.reference for prompt in prompts] == [sample.reference for sample in said]
    answers = {json.loads(line)["messages"][-1]["content"] for line in path.read_text().splitlines()}
    assert all(prompt.reference.strip() in answers for prompt in prompts)


def test_a_task_that_asks_for_nothing_generates_nothing(fleet, placing, tmp_path):
    (reported,) = Inside(fleet, tmp_path).run(
        placing({"learning_rate": [1e-3], "rank": [4], "batch_size": [4]}, early_exit=CALM)
    )
    assert not reported.of(TextsEvaluated)


def test_under_dpo_the_preferred_answer_is_the_reference(fleet, placing, tmp_path):
    spec = {"objective": {"type": "dpo"}, "early_exit": CALM, "evaluation": ASKED, "training": {"epochs": 1}}
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE | {"beta": [0.1]}, PAIRS, **spec))
    found = evaluated(reported)
    assert set(found) == {None, 0, 1}
    for event in found.values():
        assert event.error is None
        assert all(sample.reference.strip().endswith("pears") for sample in event.samples)
        assert all("how many" in sample.prompt and "pears" not in sample.prompt for sample in event.samples)


@pytest.mark.parametrize("devices", [[0], [0, 1]])
def test_tenants_who_share_an_executor_get_the_texts_they_get_alone(fleet, placing, tmp_path, devices):
    """One replica or two: texts are generated on the first, whose rows the adapter of a job on the second joins."""
    tenants = [placing(SPACE, rows(40, seed=seed), early_exit=CALM, evaluation=ASKED) for seed in (1, 2)]
    alone = [Inside(fleet, tmp_path / str(at)).run(one)[0] for at, one in enumerate(tenants)]
    named = [
        {"placement_id": f"s{at}", "token": f"token-s{at}", "tenant_id": str(at), "device_indexes": devices} for at in (0, 1)
    ]
    placements = [one.model_copy(update=own) for one, own in zip(tenants, named, strict=True)]
    together = Inside(fleet, tmp_path / "together").run(*placements)
    for shared, own in zip(together, alone, strict=True):
        assert set(evaluated(shared)) == {None, 0, 1}
        for job, event in evaluated(shared).items():
            assert event.samples == evaluated(own)[job].samples


def test_where_memory_is_short_fewer_are_generated_at_once_and_the_texts_are_the_same(fleet, placing, tmp_path, monkeypatch):
    (plenty,) = Inside(fleet, tmp_path / "a").run(placing(SPACE, early_exit=CALM, evaluation=ASKED))
    sizes, real = [], PagedCache.__init__

    def scarce(self, backbone, pages, page_tokens):
        sizes.append(pages)
        if pages > 3:
            raise MemoryError("out of memory")
        real(self, backbone, pages, page_tokens)

    monkeypatch.setattr(PagedCache, "__init__", scarce)
    monkeypatch.setattr(text_generation, "MOST_SEQUENCES", 4)
    (short,) = Inside(fleet, tmp_path / "b").run(placing(SPACE, early_exit=CALM, evaluation=ASKED))
    assert max(sizes) > 3
    for job in (None, 0, 1):
        assert evaluated(short)[job].samples == evaluated(plenty)[job].samples


def test_without_any_memory_the_adapter_is_kept_and_the_report_says_why_it_has_no_scores(fleet, placing, tmp_path, monkeypatch):
    def none(*_):
        raise MemoryError("out of memory")

    monkeypatch.setattr(PagedCache, "__init__", none)
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE, early_exit=CALM, evaluation=ASKED))
    assert set(reported.manifests) == {0, 1}
    for event in evaluated(reported).values():
        assert event.scores == {}
        assert "no memory to generate one text at a time" in event.error


def test_a_metric_that_takes_too_long_has_no_result_and_the_report_says_so(fleet, placing, tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, "SCORING_SECONDS", 1e-9)
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE, early_exit=CALM, evaluation=ASKED))
    assert set(reported.manifests) == {0, 1}
    for event in evaluated(reported).values():
        assert (event.scores, event.error, len(event.samples)) == ({}, None, 3)
        names = [note.split(" has no result: time was up after 1 of 3 texts")[0] for note in event.notes]
        assert names == ["metric 'exact_match'", "metric 'rouge'"]


def test_a_task_that_resumes_does_not_ask_the_base_again_if_the_service_knows(fleet, placing, tmp_path):
    placement = placing(SPACE, early_exit=CALM, evaluation=ASKED)
    (first,) = Inside(fleet, tmp_path).run(placement)
    again = resumed(first, "again").model_copy(
        update={"base_texts_evaluated": True, "jobs": [job.model_copy() for job in placement.jobs]}
    )
    (second,) = Inside(fleet, tmp_path).run(again)
    assert second.of(Attached)
    assert set(evaluated(second)) == {0, 1}
    assert evaluated(second)[1].samples == evaluated(first)[1].samples


def test_a_task_that_is_asked_to_leave_gives_up_the_bases_texts_and_keeps_those_of_jobs_that_end(fleet, placing, tmp_path):
    placement = placing(SPACE, early_exit=CALM, evaluation={**ASKED, "max_new_tokens": 200}, training={"epochs": 40})
    inside = Inside(fleet, tmp_path)

    def leave(reported, report):
        if reported.of(Attached) and not leaving:
            leaving.append(True)
            executors[0].handle_command(Detach(placement_id=placement.placement_id, keep=True))

    executors, leaving = [], []
    fleet.on_report = leave
    (reported,) = inside.run(placement, prepare=executors.append)
    assert reported.of(Detached)
    assert not reported.of(TextsEvaluated)
    assert not reported.ended


PROMPTS = [{"prompt": f"how many sheep are {n}?", "completion": f" {n} sheep"} for n in range(9)]


def with_prompts(fleet, placement, prompts=PROMPTS):
    file = fleet.add_file(f"prompts_of_{placement.placement_id}", jsonl(prompts))
    asked = placement.spec.evaluation.model_copy(update={"file_id": file.file_id})
    spec = placement.spec.model_copy(update={"evaluation": asked})
    return placement.model_copy(update={"prompts_file": file, "spec": spec})


@pytest.mark.parametrize(
    ("space", "data", "spec"),
    [(SPACE, None, {}), (SPACE | {"beta": [0.1]}, PAIRS, {"objective": {"type": "dpo"}})],
    ids=["sft", "dpo"],
)
def test_prompts_of_a_file_are_asked_in_its_order_whatever_the_task_learns_from(fleet, placing, tmp_path, space, data, spec):
    placement = placing(space, data, early_exit=CALM, evaluation=ASKED, training={"epochs": 1}, **spec)
    (reported,) = Inside(fleet, tmp_path).run(with_prompts(fleet, placement))
    found = evaluated(reported)
    assert set(found) == {None, 0, 1}
    for event in found.values():
        assert [sample.prompt for sample in event.samples] == [row["prompt"] for row in PROMPTS[:3]]
        assert [sample.reference for sample in event.samples] == [row["completion"] for row in PROMPTS[:3]]
        assert (event.prompts, event.error, event.notes) == (3, None, [])


def test_rows_of_a_prompt_file_that_do_not_fit_are_named(fleet, placing, tmp_path):
    long = {"prompt": "sheep " * 300, "completion": " many"}, {"prompt": "why?", "completion": " sheep" * 300}
    placement = placing(SPACE, early_exit=CALM, evaluation=ASKED, training={"max_seq_len": 100})
    (reported,) = Inside(fleet, tmp_path).run(with_prompts(fleet, placement, [*long, *PROMPTS]))
    for event in evaluated(reported).values():
        assert event.samples[0].prompt == "why?"
        assert [note.split(" of ")[0] for note in event.notes] == ["1 rows", "1 rows"]
        assert event.notes[1].endswith("have no answer within training.max_seq_len, and are left out")


@pytest.fixture
def beginning(fleet, tiny_base, tmp_path):
    """Places tasks on the tiny base under a tokenizer that puts a token before every text."""
    folder = tmp_path / "beginning"
    shutil.copytree(tiny_base.source, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    begin = tokenizer.bos_token, tokenizer.bos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{begin[0]} $A", special_tokens=[begin])
    tokenizer.save_pretrained(folder)
    return placer(fleet, BaseModelRef(name="begins", source=str(folder), revision=revision_of(folder)))


@pytest.mark.parametrize("row", [{"text": "one two three"}, {"prompt": "", "completion": " one two"}])
def test_rows_without_a_prompt_are_reported_and_nothing_is_generated(fleet, beginning, tmp_path, row):
    texts = [{key: value and f"{value} {n}" for key, value in row.items()} for n in range(40)]
    (reported,) = Inside(fleet, tmp_path).run(beginning(SPACE, texts, early_exit=CALM, evaluation=ASKED))
    assert set(reported.manifests) == {0, 1}
    assert set(evaluated(reported)) == {None, 0, 1}
    for event in evaluated(reported).values():
        assert event.error.startswith("none of the rows has a prompt to answer")
        assert (event.prompts, event.scores, event.notes) == (0, {}, ["3 of 3 rows have no prompt and are left out"])


def test_rows_without_a_prompt_are_left_out(fleet, beginning, tmp_path):
    mixed = [{"prompt": f"sheep {n}" if n % 2 else "", "completion": f" {n}"} for n in range(80)]
    (reported,) = Inside(fleet, tmp_path).run(beginning(SPACE, mixed, early_exit=CALM, evaluation={**ASKED, "max_prompts": 8}))
    for event in evaluated(reported).values():
        assert event.error is None
        assert 0 < event.prompts < 8
        assert event.notes == [f"{8 - event.prompts} of 8 rows have no prompt and are left out"]
        assert len(event.samples) == len(event.prompt_scores["rouge"]) == event.prompts
        assert all(sample.prompt.startswith("sheep") for sample in event.samples)


def test_a_row_without_a_prompt_begins_with_its_first_token_where_nothing_else_precedes_it(fleet, placing, tmp_path):
    texts = [{"text": f"one two three {n}"} for n in range(40)]
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE, texts, early_exit=CALM, evaluation=ASKED))
    for event in evaluated(reported).values():
        assert (event.error, event.prompts, event.notes) == (None, 3, [])
        for sample in event.samples:
            assert 0 < len(sample.prompt) < 6
            assert (sample.prompt + sample.reference).startswith("one two three")


def test_prompts_end_where_the_last_answer_begins(tiny_base, tmp_path):
    base = load_base(tiny_base, torch.device("cpu"))
    talks = [
        {"messages": [{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": f"first {n}"},
                      {"role": "user", "content": "and"}, {"role": "assistant", "content": f"second {n}"}]}
        for n in range(12)
    ]  # fmt: skip
    path = tmp_path / "talks.jsonl"
    path.write_bytes(jsonl(talks))
    spec = TaskSpec.model_validate({"base_model": "tiny", "dataset": {"file_id": "f"}, "search_space": SPACE})
    for prompt in prompts_of(load(spec, path, None, base.reader).validation, 8, base.decode):
        assert prompt.reference.strip().startswith("second")
        assert "first" in prompt.text
        assert "second" not in prompt.text


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
    stays, leaves = (placing(SPACE, rows(40, seed=seed), early_exit=CALM, evaluation={**ASKED, "max_new_tokens": 60})
                     for seed in (1, 2))  # fmt: skip
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
