"""Generation by plain PyTorch against transformers and PEFT, every family and several adapters at once: logits and texts."""

from dataclasses import replace

import pytest
import torch

from tests.worker.generate.adapted import LIMITS, PAGE, Adapted, decode, generated_by
from tests.worker.model import tiny
from worker.generate.batch_scheduler import BatchStep
from worker.generate.sequence import Sampling, Sequence

CONFIGS = tiny.configs()
PROMPTS = [1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 23]
NEW = 14


class Recording:
    """Stands before a runner, and keeps each sequence's logits."""

    def __init__(self, runner: object) -> None:
        self.runner = runner
        self.logits: dict[int, list[torch.Tensor]] = {}

    def run(self, step: BatchStep) -> torch.Tensor:
        found = self.runner.run(step)  # type: ignore[attr-defined]
        for sequence, row in zip(step.sequences, found, strict=True):
            self.logits.setdefault(id(sequence), []).append(row)
        return found


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_and_logits_are_those_of_transformers_and_peft(name: str) -> None:
    adapted = Adapted(CONFIGS[name])
    generator = adapted.generator()
    generator._runner = recording = Recording(generator._runner)
    sequences = adapted.sequences(PROMPTS, Sampling(NEW))
    generator.run(sequences)
    different = set()
    for slot in (None, *adapted.slots):
        model = adapted.under_peft(slot)
        for sequence in (one for one in sequences if one.adapter is slot):
            tokens, logits = generated_by(model, sequence)
            assert sequence.generated == tokens
            torch.testing.assert_close(torch.stack(recording.logits[id(sequence)]), logits, atol=1e-4, rtol=1e-4)
            different.add(tuple(tokens))
    assert len(different) > len(sequences) // 2


def test_sequences_join_and_leave_between_steps_and_change_nobodys_bits() -> None:
    adapted = Adapted(CONFIGS["gemma3"])
    sampling = Sampling(NEW, temperature=0.8, top_p=0.9, seed=1, logprobs=2)
    sequences = [
        replace(one, sampling=replace(sampling, seed=place, max_new_tokens=3 + place % 12, temperature=0.4 * (place % 3)))
        for place, one in enumerate(adapted.sequences(PROMPTS, sampling))
    ]
    alone = [replace(one, generated=[], logprobs=[]) for one in sequences]
    generator = adapted.generator(replace(LIMITS, sequences=5, prefill_tokens=20), pages=40)
    generator.run(sequences)
    for one, by_itself in zip(sequences, alone, strict=True):
        adapted.generator().run([by_itself])
        assert one.completion == by_itself.completion
        assert len(one.generated) == one.sampling.max_new_tokens
    assert generator._scheduler._pages.free == generator._scheduler._pages.total


def test_an_end_token_ends_a_sequence_as_in_transformers() -> None:
    adapted = Adapted(CONFIGS["llama"])
    sequences = adapted.sequences(PROMPTS, Sampling(NEW))
    adapted.generator().run(sequences)
    ends = (sequences[2].generated[4], sequences[9].generated[1])
    again = [replace(one, generated=[], pages=(), completion=None) for one in sequences]
    adapted.generator(end_tokens=ends).run(again)
    assert {one.completion.finish_reason for one in again if one.completion} == {"stop", "length"}
    for slot in (None, *adapted.slots):
        model = adapted.under_peft(slot)
        for one in (each for each in again if each.adapter is slot):
            assert one.generated == generated_by(model, one, eos_token_id=list(ends))[0]
            assert one.completion is not None
            assert one.completion.finish_reason == ("stop" if one.generated[-1] in ends else "length")


def test_stop_strings_across_tokens_end_the_text_before_them() -> None:
    adapted = Adapted(CONFIGS["qwen3"])
    sequences = adapted.sequences(PROMPTS, Sampling(NEW))
    adapted.generator().run(sequences)
    for one in sequences:
        text = decode(one.generated)
        stop = text[5:8]
        again = replace(one, generated=[], pages=(), completion=None, sampling=Sampling(NEW, stop=(stop, "ZZ")))
        adapted.generator().run([again])
        assert again.completion is not None
        assert again.completion.text == text[: text.index(stop)]
        assert again.completion.finish_reason == "stop"
        assert len(again.generated) == text.index(stop) + 3
        assert list(again.completion.tokens) == one.generated[: len(again.generated)]


def test_a_neighbour_that_is_nan_changes_nobody() -> None:
    adapted = Adapted(CONFIGS["llama3_rope"])
    healthy, ruined = (adapted.sequences(PROMPTS, Sampling(NEW, 0.7, 0.9)) for _ in range(2))
    adapted.generator().run(healthy)
    adapted.trainer.arena.master[adapted.slots[1].used] = float("nan")
    adapted.generator().run(ruined)
    for one, beside in zip(healthy, ruined, strict=True):
        if one.adapter is not adapted.slots[1]:
            assert one.completion == beside.completion


def test_a_sequence_that_is_cancelled_frees_its_place_running_or_waiting() -> None:
    adapted = Adapted(CONFIGS["llama"])
    generator = adapted.generator(replace(LIMITS, sequences=2))
    first, second, third = adapted.sequences([5], Sampling(NEW))[:3]
    for one in (first, second, third):
        generator.add(one)
    generator.step()
    generator.cancel(first)
    generator.cancel(third)
    while generator.busy:
        generator.step()
    assert (len(first.generated), len(second.generated), len(third.generated)) == (1, NEW, 0)
    assert generator._scheduler._pages.free == generator._scheduler._pages.total


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="the prompt has no tokens"):
        Sequence((), Sampling(1))
