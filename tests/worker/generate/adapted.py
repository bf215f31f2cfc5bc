"""Several adapters of different ranks over a small random base, the same under PEFT, and PEFT's own generation. For tests."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig

from tests.worker.model import tiny
from tests.worker.model.under_peft import under_peft
from worker.generate.batch_scheduler import GenerationLimits
from worker.generate.generator import Generator
from worker.generate.page_allocator import PageAllocator
from worker.generate.paged_cache import PagedCache
from worker.generate.plain_pass import PlainPass
from worker.generate.sequence import Sampling, Sequence
from worker.model.arena import Arena, Slot
from worker.model.backbone import Backbone
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import Trainer

RANKS = (8, 1, 24)
PAGE = 4
LIMITS = GenerationLimits(sequences=64, prefill_tokens=64, positions=256)


def decode(tokens: Any) -> str:
    """Tokens as text: letters, so that stop strings may span several."""
    return "".join(chr(ord("a") + token % 26) for token in tokens)


class Adapted:
    def __init__(self, config: PreTrainedConfig, ranks: tuple[int, ...] = RANKS) -> None:
        self.config = config
        backbone = Backbone.of(tiny.model(config))
        self.trainer = Trainer(backbone, Arena(backbone.targets, 64))
        self.slots = [self.trainer.arena.attach(rank, 2.0 * rank + place) for place, rank in enumerate(ranks)]
        tiny.randomise(self.trainer, [Segment(slot, []) for slot in self.slots])

    def generator(
        self, limits: GenerationLimits = LIMITS, pages: int = 400, page: int = PAGE, end_tokens: tuple[int, ...] = ()
    ) -> Generator:
        cache = PagedCache(self.trainer.backbone, pages, page)
        return Generator(PlainPass(self.trainer, cache), PageAllocator(pages, page), limits, decode, end_tokens)

    def sequences(self, prompts: list[int], sampling: Sampling) -> list[Sequence]:
        """A prompt of each length for the base and every adapter, interleaved."""
        rng, made = np.random.default_rng(3), []
        for length in prompts:
            for slot in (None, *self.slots):
                made.append(Sequence(tuple(rng.integers(0, tiny.VOCAB, length).tolist()), sampling, slot))
        return made

    def under_peft(self, slot: Slot | None) -> Any:
        """The base, or one adapter under PEFT."""
        return tiny.model(self.config) if slot is None else under_peft(self.config, self.trainer, slot).eval()


@torch.no_grad()
def generated_by(model: Any, sequence: Sequence, **settings: Any) -> tuple[list[int], Tensor]:
    """What transformers' generate makes of the prompt: the new tokens, and the logits of each, [tokens, V]."""
    tokens = torch.tensor([sequence.prompt])
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "bos_token_id": None} | settings
    found = model.generate(
        input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=sequence.sampling.max_new_tokens,
        return_dict_in_generate=True, output_logits=True, **settings,
    )  # fmt: skip
    return found.sequences[0, len(sequence.prompt) :].tolist(), torch.cat(found.logits)
