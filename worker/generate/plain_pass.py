"""One pass of many sequences by plain PyTorch, on any device and for every family: the oracle of the fused path.

New tokens lie on the flat axis of training, each sequence a segment of its own, so that on a CPU a sequence's numbers have the
same bits beside any others. Their keys join the cache, and each sequence attends to all of its own. Knows no sampling.
"""

from collections.abc import Sequence as Many
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from grouped_lora.base.frozen_product import product, whole_rows
from torch import Tensor

from worker.generate.batch_scheduler import BatchStep
from worker.generate.paged_cache import PagedCache
from worker.generate.sequence import Sequence
from worker.model.arena import Slot
from worker.model.example import Example
from worker.model.flat_batch import FlatBatch, Segment
from worker.model.plain.attention import BLOCK, Axis, Heads, attend_keys, causal_mask, rotated
from worker.model.plain.decoder_block import run_block
from worker.model.plain.lm_head import softcapped
from worker.model.plain.trainer import Trainer


class PassTables:
    """Where a pass's keys lie. pages_T, places_T: of each token on the axis; padding's are page 0. sequences: (first token, end
    on the axis, pages, tokens cached once the pass has written) of each sequence."""

    def __init__(self, batch: FlatBatch, page_tokens: int, pages: Many[Tensor], pasts: Many[int]) -> None:
        self.pages_T = torch.zeros_like(batch.tokens)
        self.places_T = batch.positions % page_tokens
        self.sequences = []
        for (start, stop), own, past in zip(batch.sequences(), pages, pasts, strict=True):
            self.pages_T[start:stop] = own[batch.positions[start:stop] // page_tokens]
            self.sequences.append((start, stop, own, past + stop - start))


class PlainPass:
    """Runs passes with a trainer's base and arena. A sequence's `adapter` is a slot of that arena, or None."""

    def __init__(self, trainer: Trainer, cache: PagedCache) -> None:
        self._trainer, self._cache = trainer, cache

    def run(self, step: BatchStep) -> Tensor:
        """Logits of each sequence's last token, at least float32 [sequences, V]."""
        trainer, backbone, sequences = self._trainer, self._trainer.backbone, step.sequences
        with torch.no_grad(), trainer.on_device():
            pasts = [s.cached if s.generated else 0 for s in sequences]
            batch = _flat(sequences, pasts, backbone.device)
            pages = [torch.tensor(s.pages, dtype=torch.int64, device=backbone.device) for s in sequences]
            tables = PassTables(batch, self._cache.page_tokens, pages, pasts)
            adapters, x_TK = trainer.adapters(batch, None), backbone.embed(batch)
            axes = self._axes(batch, x_TK)
            for layer, (weights, groups) in enumerate(zip(backbone.layers, trainer.arena.layout.layers, strict=True)):
                attention = partial(_attend_cached, self._cache, tables, layer)
                x_TK = run_block(
                    x_TK, weights, backbone.shape, axes[weights.rope], batch.activation_ranges, adapters, groups, attention
                )
            h_NK = backbone.final_norm(x_TK[batch.label_indices])
            h_NK = F.pad(h_NK, (0, 0, 0, whole_rows(len(sequences)) - len(sequences)))
            logits = product(h_NK, backbone.head.t())[: len(sequences)]
            wide = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
            return softcapped(wide, backbone.logit_cap)

    def _axes(self, batch: FlatBatch, like: Tensor) -> list[Axis]:
        longest = int(batch.positions.max()) + 1
        # Queries follow the keys that are cached: a block of them may see all keys of the longest sequence before it.
        mask, axes = causal_mask(longest + BLOCK, like), []
        for rotary in self._trainer.backbone.rotaries:
            cos, sin = rotary.table(longest)
            axes.append(Axis(batch.bounds, cos[batch.positions].unsqueeze(1), sin[batch.positions].unsqueeze(1), mask))
        return axes


def prompt_segment(sequence: Sequence, tokens: Many[int]) -> Segment:
    """Tokens of a sequence as a segment whose one label follows the last of them: so all are laid out, and the batch says where
    the last one lies."""
    assert sequence.adapter is None or isinstance(sequence.adapter, Slot)
    example = Example(np.array([*tokens, 0], np.int32), np.arange(len(tokens) + 1) == len(tokens))
    return Segment(sequence.adapter, [example])


def _flat(sequences: Many[Sequence], pasts: Many[int], device: torch.device) -> FlatBatch:
    """The tokens that are not cached yet, with their positions in their sequences."""
    batch = FlatBatch.of([prompt_segment(one, one.generated[-1:] or one.prompt) for one in sequences], device)
    shifts = np.zeros(batch.tokens.shape[0], np.int64)
    for (start, stop), past in zip(batch.sequences(), pasts, strict=True):
        shifts[start:stop] = past
    return replace(batch, positions=batch.positions + torch.from_numpy(shifts).to(device))


def _attend_cached(cache: PagedCache, tables: PassTables, layer: int, qkv_TN: Tensor, axis: Axis, heads: Heads) -> Tensor:
    """As plain/attention.attend, over the cached keys as well; the new ones join them."""
    x = qkv_TN.view(qkv_TN.shape[0], -1, heads.size)
    qk, _ = rotated(x, axis, heads)
    cache.write(layer, tables.pages_T, tables.places_T, qk[:, heads.query :], x[:, heads.turned :])
    out = x.new_zeros(x.shape[0], heads.query, heads.size)
    for start, stop, pages, tokens in tables.sequences:
        k, v = cache.read(layer, pages, tokens)
        q = qk[start:stop, : heads.query].transpose(0, 1)
        attend_keys(q, k, v, heads, axis.mask, out[start:stop].transpose(0, 1))
    return out.flatten(1)
