"""The prompts of text evaluations: from a file, from rows, and rows that have none."""

import re
import shutil

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, GenerationConfig

from contract.messages.placement_messages import BaseModelRef
from contract.model_revision import revision_of
from contract.task_spec import Objective, TaskSpec
from tests.worker.corpus import EXAMPLE_BASE, jsonl
from tests.worker.executor.text_evaluations import ASKED, CALM, PAIRS, SPACE, evaluated
from tests.worker.inside import Inside
from tests.worker.placer import placer
from worker.data.dataset import load
from worker.data.evaluation_prompts import PromptFile, prompts_of
from worker.data.row_reader import reader_of
from worker.data.token_cache import loose_stream
from worker.data.tokenising.file_tokeniser import Reading
from worker.generate.sequence import Sampling, Sequence
from worker.replicas.base_loader import load_base

pytestmark = pytest.mark.usefixtures("measured_once")

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


def test_rows_that_are_left_out_need_not_be_cut(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLE_BASE)
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    path = tmp_path / "prompts.jsonl"
    alone = {"messages": [{"role": "assistant", "content": "a"}]}  # nothing precedes its only token
    path.write_bytes(jsonl([alone, {"prompt": "why?", "completion": " sheep" * 300}]))
    stream = loose_stream(path, Reading(reader_of(tokenizer), Objective(), 100), lambda: None)
    found = PromptFile.of(stream)
    assert (len(found.rows), found.truncated, found.skipped) == (1, 1, 1)


def test_rows_of_a_prompt_file_that_do_not_fit_are_named(fleet, placing, tmp_path):
    long = {"prompt": "sheep " * 300, "completion": " many"}, {"prompt": "why?", "completion": " sheep" * 300}
    placement = placing(SPACE, early_exit=CALM, evaluation=ASKED, training={"max_seq_len": 100})
    (reported,) = Inside(fleet, tmp_path).run(with_prompts(fleet, placement, [*long, *PROMPTS]))
    for event in evaluated(reported).values():
        assert event.samples[0].prompt == "why?"
        assert event.notes == [
            "of the file of prompts 2 rows were longer than training.max_seq_len, and cut to it; 1 row with nothing left "
            "to learn was left out",
            "1 of 3 references were cut by training.max_seq_len, so texts are compared with less than the row's answer; "
            "raise it, or shorten the rows",
        ]


def test_references_that_are_cut_are_counted_and_those_that_just_fit_are_not(fleet, placing, tiny_base, tmp_path):
    reader = load_base(tiny_base, torch.device("cpu")).reader
    rows = [{"prompt": "why?", "completion": " sheep" * n} for n in (7, 8, 9)]
    fits = len(reader.read(rows[1:2])[0][0].ids)
    for evaluation in (ASKED, ASKED | {"max_prompts": 2}):
        placement = placing(SPACE, early_exit=CALM, evaluation=evaluation, training={"max_seq_len": fits})
        (reported,) = Inside(fleet, tmp_path).run(with_prompts(fleet, placement, rows))
        for event in evaluated(reported).values():
            cut = [note for note in event.notes if "cut by training.max_seq_len" in note]
            assert [note[:23] for note in cut] == (["1 of 3 references were "] if event.prompts == 3 else [])


def test_preferred_answers_that_are_cut_are_counted(fleet, placing, tmp_path):
    pairs = [row | {"preferred_output": [{"role": "assistant", "content": f"{n} pears " * 30}]} for n, row in enumerate(PAIRS)]
    spec = {"objective": {"type": "dpo"}, "training": {"max_seq_len": 48}}
    placement = placing(SPACE | {"beta": [0.1]}, pairs, early_exit=CALM, evaluation=ASKED, **spec)
    (reported,) = Inside(fleet, tmp_path).run(placement)
    assert [event.notes[0][:24] for event in evaluated(reported).values()] == ["3 of 3 references were c"] * 3


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


def test_an_end_token_that_is_no_special_one_is_in_no_text_and_no_reference(tiny_base, tmp_path):
    folder = tmp_path / "base"
    shutil.copytree(tiny_base.source, folder)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|end|>", "~"))
    (end,) = AutoTokenizer.from_pretrained(folder)("~", add_special_tokens=False)["input_ids"]
    GenerationConfig(eos_token_id=[end]).save_pretrained(folder)
    base = load_base(BaseModelRef(name="tilde", source=str(folder), revision=revision_of(folder)), torch.device("cpu"))
    assert end in base.end_tokens
    rows = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": f"a {n}"}]} for n in range(12)]
    path = tmp_path / "talks.jsonl"
    path.write_bytes(jsonl(rows))
    spec = TaskSpec.model_validate({"base_model": "tilde", "dataset": {"file_id": "f"}, "search_space": SPACE})
    found = prompts_of(load(spec, path, None, base.reader).validation, 8, base.decode)
    assert all(re.fullmatch(r"a \d+", prompt.reference.strip()) for prompt in found)
    one = Sequence((7,), Sampling(max_new_tokens=9))
    for token in (*base.reader.text_prompt("a 4"), end):
        one.append(token, None, base.end_tokens, base.decode)
    assert one.completion is not None
    assert (one.completion.text.strip(), one.completion.finish_reason) == ("a 4", "stop")
