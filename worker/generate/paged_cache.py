"""Key-value cache in pages of a fixed number of tokens (Kwon et al. 2023), so that sequences of any length share one buffer.

Holds tensors; hands out no pages (page_allocator.py). Page 0 belongs to nobody: padding is written there.

Legend: L layers, N pages, G key heads, P tokens of a page, D head size, T tokens of a pass.
"""

import torch
from torch import Tensor

from worker.model.backbone import Backbone


class PagedCache:
    """keys, values: [L, N, G, P, D], keys as rotary leaves them."""

    def __init__(self, backbone: Backbone, pages: int, page_tokens: int) -> None:
        shape, like = backbone.shape, backbone.embedding
        size = (len(backbone.layers), pages, shape.key_heads, page_tokens, shape.head_size)
        self.keys = torch.zeros(size, dtype=like.dtype, device=like.device)
        self.values = torch.zeros_like(self.keys)

    @property
    def page_tokens(self) -> int:
        return self.keys.shape[3]

    @property
    def pages(self) -> int:
        return self.keys.shape[1]

    def write(self, layer: int, pages_T: Tensor, places_T: Tensor, k_TGD: Tensor, v_TGD: Tensor) -> None:
        """Store each token's key and value at its place in its page. pages_T, places_T: int64."""
        self.keys[layer][pages_T, :, places_T] = k_TGD
        self.values[layer][pages_T, :, places_T] = v_TGD

    def read(self, layer: int, pages: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """The first `tokens` keys and values of a sequence, [G, tokens, D] each. pages: int64, in the sequence's order."""
        return self._gathered(self.keys[layer], pages, tokens), self._gathered(self.values[layer], pages, tokens)

    @staticmethod
    def _gathered(buffer: Tensor, pages: Tensor, tokens: int) -> Tensor:
        return buffer[pages].transpose(0, 1).flatten(1, 2)[:, :tokens]
