"""Generation through the fused layers and the paged kernel, in fp32, against the plain path: logits of every step."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, MistralConfig, PreTrainedConfig, Qwen3Config

from tests.kernels.test_triton_pass import SIZES
from tests.kernels.triton_case import DEVICE, error
from tests.worker.generate.adapted import decode
from tests.worker.model import tiny
from worker.generate.batch_scheduler import BatchStep, GenerationLimits
from worker.generate.cuda.fused_runner import FusedRunner
from worker.generate.generator import Generator, Runner
from worker.generate.page_allocator import PageAllocator
from worker.generate.paged_cache import PagedCache
from worker.generate.plain_pass import PlainPass
from worker.generate.sequence import Sampling, Sequence
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import Trainer

PAGE, CLOSE = 16, 2e-5
PROMPTS, NEW = (1, PAGE - 1, PAGE, PAGE + 1), 3
LIMITS = GenerationLimits(sequences=7, prefill_tokens=40, positions=64)


class Compared:
    """Runs each step on both paths, checks that they agree, and hands out the fused path's logits."""

    def __init__(self, fused: Runner, plain: Runner, moved: dict[object, object]) -> None:
        self.fused, self.plain, self.moved, self.steps = fused, plain, moved, 0

    def run(self, step: BatchStep) -> torch.Tensor:
        ours = self.fused.run(step)
        there = tuple(replace(one, adapter=self.moved[one.adapter], completion=None) for one in step.sequences)
        want = self.plain.run(BatchStep(there, step.prefill))
        assert ours.shape == want.shape
        assert error(ours, want) < CLOSE
        self.steps += 1
        return ours


@pytest.mark.parametrize(
    ("config", "ranks"),
    [
        pytest.param(Qwen3Config(**SIZES), (8, 20), id="qwen3"),
        pytest.param(MistralConfig(**SIZES, sliding_window=PAGE + 2), (100, 24), id="window"),
        pytest.param(LlamaConfig(**SIZES), (8, 130), id="llama", marks=pytest.mark.slow),
        pytest.param(tiny.configs()["gemma2"], (8, 20), id="gemma2"),
        pytest.param(tiny.configs()["gemma3"], (8, 20), id="gemma3"),
        pytest.param(tiny.configs()["olmo2"], (8, 20), id="olmo2"),
        pytest.param(tiny.configs()["phi3_part"], (8, 20), id="phi3", marks=pytest.mark.slow),
    ],
)
def test_prompts_and_decode_steps_equal_the_plain_path(config: PreTrainedConfig, ranks: tuple[int, ...]) -> None:
    """With the base and adapters of these ranks."""
    backbone = Backbone.of(tiny.model(config), DEVICE)
    fused = DeviceTrainer(backbone, DeviceArena(backbone.targets, 256, DEVICE, torch.float32))
    plain = Trainer(backbone, Arena(backbone.targets, 256, DEVICE))
    moved: dict[object, object] = {None: None}
    for rank in ranks:
        slot, there = (trainer.arena.attach(rank, 2.0 * rank) for trainer in (fused, plain))
        tiny.randomise(fused, [Segment(slot, [])], seed=rank)
        plain.arena.master[there.used] = fused.arena.master[slot.used]
        moved[slot] = there
    caches = [PagedCache(backbone, 24, PAGE) for _ in range(2)]
    for cache in caches:
        cache.keys.fill_(float("nan"))
        cache.values.fill_(float("nan"))
    runner = Compared(FusedRunner(fused, caches[0]), PlainPass(plain, caches[1]), moved)
    generator = Generator(runner, PageAllocator(24, PAGE), LIMITS, decode)
    rng = np.random.default_rng(5)
    sequences = [
        Sequence(tuple(rng.integers(0, tiny.VOCAB, length).tolist()), Sampling(NEW + place % 2), slot)
        for place, length in enumerate(PROMPTS)
        for slot in moved
    ]
    generator.run(sequences)
    assert all(one.completion is not None for one in sequences)
    assert runner.steps > 8
