"""Generation on a GPU in bf16: captured decode steps against launched ones, against the truth, beside NaN, while training."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.worker.generate.adapted import decode
from tests.worker.model.device_case import (
    device_trainer,
    error,
    fill_slots,
    gemma2,
    gemma3,
    llama,
    olmo2,
    phi3,
    plain_trainer,
    qwen,
)
from worker.generate.batch_scheduler import BatchStep, GenerationLimits
from worker.generate.cuda.fused_runner import CAPTURE_AFTER, FusedRunner
from worker.generate.generator import Generator, Runner
from worker.generate.page_allocator import PageAllocator
from worker.generate.paged_cache import PagedCache
from worker.generate.plain_pass import PlainPass
from worker.generate.sequence import Sampling, Sequence
from worker.model.arena import Slot
from worker.model.plain.trainer import Trainer

pytestmark = pytest.mark.gpu

PAGE, PAGES, NEW = 64, 300, 24
LIMITS = GenerationLimits(sequences=64, prefill_tokens=2048, positions=512)


def sequences(slots: list[Slot], sampling: Sampling, prompts: tuple[int, ...] = (1, 63, 64, 65, 200)) -> list[Sequence]:
    rng = np.random.default_rng(2)
    return [Sequence(tuple(rng.integers(0, 300, n).tolist()), sampling, slot) for n in prompts for slot in (None, *slots)]


def generator(runner: Runner, limits: GenerationLimits = LIMITS) -> Generator:
    return Generator(runner, PageAllocator(PAGES, PAGE), limits, decode)


def forced(trainer: Trainer, runner: Runner, slots: list[Slot], like: list[Sequence]) -> torch.Tensor:
    """Logits of a runner that is fed the tokens of finished sequences, [tokens, sequences, V]."""
    pages = PageAllocator(PAGES, PAGE)
    moved = [
        replace(
            one, generated=[], completion=None, adapter=None if one.adapter is None else slots[place % (len(slots) + 1) - 1]
        )
        for place, one in enumerate(like)
    ]
    for one in moved:
        one.pages = pages.take(pages.pages_for(one.most_tokens))
    found = [runner.run(BatchStep(tuple(moved), prefill=True)).double().cpu()]
    for number in range(NEW - 1):
        for one, done in zip(moved, like, strict=True):
            one.generated.append(done.generated[number])
        found.append(runner.run(BatchStep(tuple(moved), prefill=False)).double().cpu())
    return torch.stack(found)


@pytest.mark.parametrize("make", [llama, qwen, gemma2, gemma3, olmo2, phi3])
def test_logits_of_every_step_are_no_worse_than_plain_bf16(make: object) -> None:
    assert callable(make)
    ours = device_trainer(make())
    slots = fill_slots(ours)
    runner = FusedRunner(ours, PagedCache(ours.backbone, PAGES, PAGE))
    done = sequences(slots, Sampling(NEW))
    generator(runner).run(done)
    assert len(runner.captured) == 1
    results = [forced(ours, runner, slots, done)]
    for dtype, device in ((torch.float64, "cpu"), (torch.bfloat16, "cuda")):
        plain = plain_trainer(make(), dtype, device)
        cache = PagedCache(plain.backbone, PAGES, PAGE)
        results.append(forced(plain, PlainPass(plain, cache), fill_slots(plain), done))
    fused, truth, bf16 = results
    assert error(fused, truth) <= 1.5 * error(bf16, truth)


@pytest.mark.parametrize("make", [llama, gemma2])
def test_a_captured_step_has_the_bits_of_a_launched_one_and_a_nan_neighbour_changes_nobody(
    make: Callable[[], PreTrainedModel],
) -> None:
    trainer = device_trainer(make())
    slots = fill_slots(trainer)
    texts = []
    for ruined in (False, False, True):
        launched = not texts
        runner = FusedRunner(trainer, PagedCache(trainer.backbone, PAGES, PAGE), 1000 if launched else CAPTURE_AFTER)
        if ruined:
            trainer.arena.master[slots[2].used] = float("nan")
            trainer.arena.touched(slots[2])
        done = sequences(slots, Sampling(NEW, 0.8, 0.95))
        generator(runner).run(done)
        assert bool(runner.captured) != launched
        texts.append([one.generated for one in done if one.adapter is not slots[2]])
    assert texts[0] == texts[1] == texts[2]


def test_sequences_of_many_lengths_come_and_go_while_the_arena_grows() -> None:
    trainer = device_trainer(llama())
    slots = fill_slots(trainer)
    runner = FusedRunner(trainer, PagedCache(trainer.backbone, PAGES, PAGE))
    many = generator(runner, replace(LIMITS, sequences=9))
    done = [
        replace(one, sampling=Sampling(3 + place % (2 * CAPTURE_AFTER)))
        for place, one in enumerate(sequences(slots, Sampling(NEW)))
    ]
    for one in done:
        many.add(one)
    for _ in range(12):
        many.step()
    trainer.arena.grow(trainer.arena.rows + 64)
    while many.busy:
        many.step()
    assert [len(one.generated) for one in done] == [one.sampling.max_new_tokens for one in done]
