"""Completions in an executor: texts are those of transformers and PEFT, token by token, and training keeps its bits."""

import hashlib
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load, save
from transformers import AutoModelForCausalLM, AutoTokenizer

from contract.messages.completion_messages import CheckpointWeights
from contract.messages.peft_settings import CONFIG_FILE, WEIGHTS_FILE
from contract.messages.report_messages import AdapterKept, Checkpointed
from tests.worker.corpus import rows
from tests.worker.executor.completion_work import CALM, LONG, NEW, SPACE, answers, chat, over, work
from tests.worker.executor.text_evaluations import passes_take
from tests.worker.inside import Inside
from tests.worker.placer import placer

pytestmark = pytest.mark.usefixtures("measured_once")

TEXTS = [{"prompt": f"how many, {n}?", "completion": f" {n} pears"} for n in range(40)]
PAIRS = [
    {
        "input": {"messages": [{"role": "user", "content": f"how many, {n}?"}]},
        "preferred_output": [{"role": "assistant", "content": f"{n} pears"}],
        "non_preferred_output": [{"role": "assistant", "content": "none at all"}],
    }
    for n in range(40)
]


def generated(base: str, tokens: list[int], folder: Path | None) -> list[int]:
    """The greedy tokens of transformers, and of PEFT with the adapter in this folder."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if folder is not None:
        model = peft.PeftModel.from_pretrained(model, folder)
    end = AutoTokenizer.from_pretrained(base).eos_token_id
    out = model.generate(torch.tensor([tokens]), max_new_tokens=NEW, do_sample=False, eos_token_id=end, pad_token_id=end)
    return out[0, len(tokens) :].tolist()


CASES = [
    pytest.param({**SPACE, "rank": [8]}, None, {}, id="rank 8"),
    pytest.param({**SPACE, "rank": [1]}, None, {}, id="rank 1"),
    pytest.param({**SPACE, "rank": [24], "rslora": [True], "target_modules": [["q_proj", "v_proj"]]}, None, {}, id="rslora"),
    pytest.param({**SPACE, "beta": [0.1]}, PAIRS, {"objective": {"type": "dpo"}}, id="dpo"),
]


@pytest.mark.parametrize(("space", "data", "spec"), CASES)
def test_greedy_texts_are_those_of_transformers_and_peft(
    fleet, placing, trained, tiny_base, tmp_path, space, data, spec
) -> None:
    files = trained(space, data, **spec)
    folder = tmp_path / "adapter"
    folder.mkdir()
    for file in files:
        (folder / file.path).write_bytes(fleet.objects[file.sha256])
    tokenizer = AutoTokenizer.from_pretrained(tiny_base.source)
    asked = [{"role": "user", "content": "three pears plus two"}]
    written = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    text = tokenizer("one two three apples")["input_ids"]
    works = [chat("c0"), work("t0"), chat("c1", adapter=files), work("t1", adapter=files), work("ids", prompts=[text])]
    said = answers(fleet, tmp_path / "asked", placing(SPACE, early_exit=CALM, training=LONG), works)
    for id, prompt, adapter in (("c0", written, None), ("t0", text, None), ("c1", written, folder), ("t1", text, folder)):
        tokens = generated(tiny_base.source, prompt, adapter)
        assert said[id].text == tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False), id
        assert said[id].last.completion_tokens == len(tokens)
        assert said[id].last.prompt_tokens == len(prompt)
        assert said[id].last.seconds > 0
    assert said["ids"].text == said["t0"].text
    assert said["c0"].text != said["c1"].text


@pytest.mark.parametrize("precision", ["nf4", "nf4_double"])
def test_an_adapter_of_a_base_in_four_bits_says_what_it_said_when_it_was_evaluated(fleet, placing, tmp_path, precision) -> None:
    spec = {"evaluation": {"metrics": [{"type": "exact_match"}], "max_prompts": 2, "max_new_tokens": NEW}}
    short = placing(SPACE, early_exit={"policy": "none", "eval_every": 4}, precision=precision, training={"epochs": 2}, **spec)
    (reported,) = Inside(fleet, tmp_path / "a").run(short)
    files = reported.of(AdapterKept)[0].manifest.files
    sample = next(event for event in reported.events if getattr(event, "kind", "") == "texts_evaluated" and event.job == 0)
    held_out = [row for row in rows(40) if row["messages"][1]["content"].strip() == sample.samples[0].reference.strip()]
    asked = chat("q", held_out[0]["messages"][0]["content"], adapter=files)
    said = answers(fleet, tmp_path / "b", placing(SPACE, early_exit=CALM, training=LONG, precision=precision), [asked])
    assert said["q"].text == sample.samples[0].text


def test_training_has_the_same_bits_with_and_without_requests(fleet, placing, trained, tmp_path) -> None:
    files = trained({**SPACE, "rank": [16]})
    plan = {"training": {"epochs": 100, "max_steps": 60}, "early_exit": {"policy": "none", "eval_every": 20}}
    data = rows(40, seed=5)
    (alone,) = Inside(fleet, tmp_path / "alone").run(placing(SPACE, data, **plan))
    tenants = [chat(f"q{at}", f"one {at}", adapter=files if at % 2 else None, tenant_id=f"t{at}") for at in range(6)]
    fleet.asked += tenants
    inside = Inside(fleet, tmp_path / "beside", worker_completion_share=0.5)
    inside.between_steps = lambda: fleet.until(lambda: not fleet.asked)  # all are asked as training begins
    (beside,) = inside.run(placing(SPACE, data, **plan), prepare=passes_take(0.0), paced=True)
    assert all(over(fleet, work.request_id) for work in tenants)
    assert beside.curves == alone.curves
    said = [[file.sha256 for file in one.of(AdapterKept)[0].manifest.files] for one in (alone, beside)]
    assert said[0][1] == said[1][1], "the adapters' weights"


def test_pieces_add_up_and_are_the_same_whoever_else_asks(fleet, placing, trained, tmp_path) -> None:
    files = trained(SPACE)
    drawn = {"temperature": 0.9, "top_p": 0.95, "logprobs": 2}
    one = chat("alone", adapter=files, n=2, **drawn)
    alone = answers(fleet, tmp_path / "a", placing(SPACE, early_exit=CALM, training=LONG), [one])["alone"]
    again = one.model_copy(update={"request_id": "again"})
    others = [chat(f"other{at}", f"{at} sheep", seed=at, **drawn) for at in range(5)]
    second = one.model_copy(update={"request_id": "second", "n": 1, "seed": one.seed + 1})
    said = answers(fleet, tmp_path / "b", placing(SPACE, early_exit=CALM, training=LONG), [*others, again, second])
    assert alone.last.number > 2, "it streams, though pieces that wait together are sent as one"
    for index in (0, 1):
        assert said["again"].choice(index) == alone.choice(index)
    assert alone.choice(0).text != alone.choice(1).text
    assert said["second"].choice(0).text == alone.choice(1).text, "choice i has seed + i"
    listed = alone.choice(0).logprobs
    assert listed
    assert all(len(token.top) == 2 and token.top[0][1] >= token.top[1][1] and token.logprob <= 0 for token in listed)
    assert "".join(token.token for token in listed).startswith(alone.choice(0).text)


def test_a_stop_string_ends_a_text_before_it(fleet, placing, tmp_path) -> None:
    placement = placing(SPACE, early_exit=CALM, training=LONG)
    whole = answers(fleet, tmp_path / "a", placement, [work("whole")])["whole"].text
    stop = whole[5:9]
    cut = answers(fleet, tmp_path / "b", placing(SPACE, early_exit=CALM, training=LONG), [work("cut", stop=[stop, "no such"])])
    assert cut["cut"].text == whole[: whole.index(stop)]
    assert cut["cut"].choice().finish_reason == "stop"
    assert cut["cut"].last.completion_tokens <= NEW


def test_the_newest_checkpoint_of_a_job_that_trains_can_be_asked(fleet, placing, tmp_path, monkeypatch) -> None:
    """It says what the adapter says that is kept of the same step."""
    plan = {"training": {"epochs": 100, "max_steps": 40}, "early_exit": {"policy": "none", "eval_every": 40}}
    placement = placing(SPACE, **plan)
    monkeypatch.setattr("worker.executor.checkpoint_policy._SHARE", 0)  # however long the copies take, one after each step
    (reported,) = Inside(fleet, tmp_path / "a", worker_checkpoint_seconds=1e-6).run(placement, paced=True)
    refs = [ref for event in reported.of(Checkpointed) for ref in event.jobs.values()]
    alpha = placement.jobs[0].config.plain_alpha
    asked = [
        chat(f"k{ref.step}", checkpoint=CheckpointWeights(file=ref, plain_alpha=alpha).model_dump())
        for ref in (refs[0], refs[-1])
    ]
    said = answers(fleet, tmp_path / "b", placing(SPACE, early_exit=CALM, training=LONG), [*asked, chat("base")])
    assert all(one.last.failed is None for one in said.values())
    assert said[asked[0].request_id].text != said[asked[1].request_id].text
    assert said[asked[1].request_id].text != said["base"].text


def test_what_cannot_be_answered_is_said_in_words(fleet, placing, tmp_path) -> None:
    words = "one two three " * 200
    works = [
        work("long", prompts=[words]),
        work("room", prompts=["one two"], max_tokens=300, exact_max_tokens=True),
        work("fits", prompts=["one two"], max_tokens=300),
        work("empty", prompts=[""]),
        work("token", prompts=[[10**6]]),
    ]
    said = answers(fleet, tmp_path, placing(SPACE, early_exit=CALM, training=LONG), works)
    failed = {id: one.last.failed for id, one in said.items() if one.last.failed is not None}
    assert {id: (one.param, one.code) for id, one in failed.items()} == {
        "long": ("prompt", "context_length_exceeded"),
        "room": ("prompt", "context_length_exceeded"),
        "token": ("prompt", "unknown_token"),
        **({"empty": ("prompt", "empty_prompt")} if "empty" in failed else {}),
    }
    assert "256 positions" in failed["long"].message
    assert said["fits"].choice().finish_reason is not None


def test_a_conversation_that_the_base_cannot_read_is_refused_and_leaves_the_others(fleet, wordy_base, tmp_path) -> None:
    placement = placer(fleet, wordy_base)(SPACE, TEXTS, early_exit=CALM, training=LONG)
    works = [chat("token", "what is <image_soft_token>?"), chat("blank", "nothing"), chat("sound")]
    said = answers(fleet, tmp_path / "node", placement, works)
    failed = {id: (one.last.failed.param, one.last.failed.code) for id, one in said.items() if one.last.failed is not None}
    assert failed == {"token": ("messages", "unknown_token"), "blank": ("messages", "empty_prompt")}
    assert said["sound"].choice().finish_reason is not None


def test_log_probabilities_that_are_not_finite_end_the_request_in_words(fleet, placing, trained, tmp_path) -> None:
    files = {file.path: file for file in trained(SPACE)}
    huge = {name: torch.full_like(one, 3e38) for name, one in load(fleet.objects[files[WEIGHTS_FILE].sha256]).items()}
    written = save(huge, {"format": "pt"})
    sha256 = hashlib.sha256(written).hexdigest()
    fleet.objects[sha256] = written
    adapter = [files[CONFIG_FILE], files[WEIGHTS_FILE].model_copy(update={"sha256": sha256, "bytes": len(written)})]
    works = [chat("huge", adapter=adapter, logprobs=1), chat("sound", logprobs=1)]
    said = answers(fleet, tmp_path / "node", placing(SPACE, early_exit=CALM, training=LONG), works)
    failed = said["huge"].last.failed
    assert failed is not None
    assert (failed.param, failed.code) == ("model", "not_finite")
    assert said["huge"].last.completion_tokens == 1, "it goes on no longer"
    assert said["sound"].last.failed is None
