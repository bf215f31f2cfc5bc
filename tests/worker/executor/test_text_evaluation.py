"""Text evaluations on an executor: who is asked, when, and what memory and leaving do to it."""

import json

import pytest
import torch

from contract.messages.report_messages import AdapterKept, Attached, Detached, JobCompleted, TextsEvaluated
from tests.worker.corpus import rows
from tests.worker.executor.text_evaluations import ASKED, CALM, PAIRS, SPACE, evaluated, passes_take
from tests.worker.inside import Inside, resumed
from worker.data.dataset import load
from worker.data.evaluation_prompts import prompts_of
from worker.executor.evaluation import asked_texts
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

pytestmark = pytest.mark.usefixtures("measured_once")


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

    def prepare(executor):
        executors.append(executor)
        passes_take(1e6)(executor)  # no pass of the base's texts but the first before it hears that it is to leave

    executors, leaving = [], []
    fleet.on_report = leave
    (reported,) = inside.run(placement, prepare=prepare, paced=True)
    assert reported.of(Detached)
    assert not reported.of(TextsEvaluated)
    assert not reported.ended


def test_a_task_that_is_asked_to_leave_when_no_job_trains_any_more_keeps_the_bases_texts(fleet, placing, tmp_path):
    """It has no next placement, which would ask for them again."""
    placement = placing(SPACE, early_exit=CALM, evaluation=ASKED, training={"epochs": 1})

    def prepare(executor):
        passes_take(1e6)(executor)
        iterate = executor._iterate

        def leave(replicas):
            task = executor._attached[placement.placement_id]
            if task.runs and not task.any_unfinished:
                executor._iterate = iterate
                executor._attached.detach(Detach(placement_id=placement.placement_id, keep=True))
            iterate(replicas)

        executor._iterate = leave

    (reported,) = Inside(fleet, tmp_path).run(placement, prepare=prepare)
    assert {event.kind for event in reported.ended.values()} == {"job_completed"}
    assert set(evaluated(reported)) == {None, 0, 1}


JUDGE = {"type": "endpoint", "name": "judge", "url": "https://judge.example.com/"}


@pytest.mark.parametrize("metrics", [[*ASKED["metrics"], JUDGE], [JUDGE]])
def test_for_endpoint_graders_every_text_is_reported_in_full(fleet, placing, tmp_path, metrics):
    evaluation = {**ASKED, "metrics": metrics, "max_prompts": 10}
    placement = placing(SPACE, rows(120), early_exit=CALM, evaluation=evaluation, training={"epochs": 1})
    (reported,) = Inside(fleet, tmp_path).run(placement)
    names = {metric.get("name", metric["type"]) for metric in metrics} - {"judge"}
    for event in evaluated(reported).values():
        assert (event.prompts, len(event.texts), len(event.samples), set(event.scores)) == (10, 10, 8, names)
        for text, sample in zip(event.texts, event.samples, strict=False):
            assert text.model_dump() == sample.model_dump(exclude={"scores"})


def test_without_endpoint_graders_texts_stay_where_they_are(fleet, placing, tmp_path):
    (reported,) = Inside(fleet, tmp_path).run(placing(SPACE, early_exit=CALM, evaluation=ASKED))
    assert all(event.texts == [] for event in evaluated(reported).values())


def test_texts_that_no_report_can_hold_are_told_in_the_notes(fleet, placing, tmp_path, monkeypatch):
    monkeypatch.setattr(asked_texts, "MOST_TEXT_BYTES", 100)
    placement = placing(SPACE, early_exit=CALM, evaluation={**ASKED, "metrics": [*ASKED["metrics"], JUDGE]})
    (reported,) = Inside(fleet, tmp_path).run(placement)
    for event in evaluated(reported).values():
        assert (event.texts, set(event.scores)) == ([], {"exact_match", "rouge"})
        assert event.notes[-1].startswith("metric 'judge' has no result: the 3 texts with their prompts take ")
        assert event.notes[-1].endswith("at most 100 are sent to an endpoint; lower max_prompts or max_new_tokens")
