"""The plain pass with decode steps that attend in one launch a layer, for families that the fused layers lack (Gemma 2 and 3).

The plain pass attends sequence by sequence, a dozen launches for each. Captures no graphs. Knows no sampling.
"""

import torch
import torch.nn.functional as F
from grouped_lora.block.paged_attention import paged_attention
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from worker.generate.batch_scheduler import BatchStep
from worker.generate.plain_pass import LayerAttention, PassTables, PlainPass
from worker.model.plain.attention import Axis, Heads, rotated


class PagedPass(PlainPass):
    """As PlainPass. The cache's pages hold a power of two of at least 16 tokens."""

    def _attention(self, step: BatchStep, tables: PassTables) -> LayerAttention:
        if step.prefill:
            return super()._attention(step, tables)
        pages_BN = pad_sequence([pages for _, _, pages, _ in tables.sequences], batch_first=True).int()
        lengths_B = torch.tensor([tokens for *_, tokens in tables.sequences], dtype=torch.int32, device=pages_BN.device)

        def attend(layer: int, qkv_TN: Tensor, axis: Axis, heads: Heads) -> Tensor:
            x = qkv_TN.view(qkv_TN.shape[0], -1, heads.size)
            qk, _ = rotated(x, axis, heads)
            self._cache.write(layer, tables.pages_T, tables.places_T, qk[:, heads.query :], x[:, heads.turned :])
            count = len(tables.sequences)  # each has one token on the axis, and the tail behind them comes out as zeros
            out = paged_attention(
                qk[:count].flatten(1),
                self._cache.keys[layer],
                self._cache.values[layer],
                pages_BN,
                lengths_B,
                (heads.query, heads.key),
                heads.scale,
                heads.window,
                heads.cap,
            )
            return F.pad(out, (0, 0, 0, x.shape[0] - count))

        return attend
