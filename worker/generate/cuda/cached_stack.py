"""The fused layers with a key-value cache: prompts attend to themselves, decode steps to their pages. Knows no sequences.

Legend: T tokens of a pass (B sequences of a decode step), P tokens of a page.
"""

from dataclasses import dataclass

import torch
from grouped_lora.block.paged_attention import paged_attention
from torch import Tensor

from worker.generate.paged_cache import PagedCache
from worker.model.cuda.batches.device_batch import DeviceBatch
from worker.model.cuda.layers.fused_stack import FusedStack


@dataclass(frozen=True)
class CachedBatch(DeviceBatch):
    """pages, places: int64 [T], where each token's key and value are written; padding's page is 0. tables int32 [T, pages] and
    lengths int32 [T] of a decode step: each sequence's pages and its tokens, the new one included; None for prompts."""

    pages: Tensor
    places: Tensor
    tables: Tensor | None = None
    lengths: Tensor | None = None


class CachedStack(FusedStack):
    def __init__(self, stack: FusedStack, cache: PagedCache) -> None:
        """The layers of `stack`, writing to and reading from `cache`."""
        super().__init__(stack.layers, stack.final_norm, stack.dims, stack.rotaries)
        self._cache = cache

    def _attend(self, index: int, qkv: Tensor, batch: DeviceBatch) -> tuple[Tensor, Tensor]:
        assert isinstance(batch, CachedBatch)
        dims, cache = self.dims, self._cache
        heads = qkv.view(qkv.shape[0], -1, dims.shape.head_size)
        queries, turned = dims.heads[0], sum(dims.heads)
        cache.write(index, batch.pages, batch.places, heads[:, queries:turned], heads[:, turned:])
        if batch.tables is None or batch.lengths is None:
            return super()._attend(index, qkv, batch)
        attended = paged_attention(
            qkv,
            cache.keys[index],
            cache.values[index],
            batch.tables,
            batch.lengths,
            dims.heads,
            dims.shape.scale,
            self.layers[index].window,
            dims.shape.cap,
        )
        return attended, torch.empty(0, device=qkv.device)  # nothing goes backward
