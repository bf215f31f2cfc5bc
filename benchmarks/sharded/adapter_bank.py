"""The rivals' adapters: several of equal rank in flat buffers, as leaves that batched products read, with clipping and AdamW.

float32 weights and moments beside a copy in the products' dtype, as ours. Under tensor parallelism a rank holds its part of
each factor that meets a split dimension, and whole copies of the others. Legend: E adapters, R rank, K in, N out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.llama_shapes import LlamaShape
from benchmarks.sharded.workload import CLIP, DECAY, RANK, RATE, Factors, first_factors, widths
from worker.model.arena_layout import GROUPS
from worker.model.row_optimizer import BETAS, EPS

COLUMN_PARALLEL = ("qkv", "gate_up")  # groups whose outputs tensor parallelism splits; of the others it splits the inputs
BYTES_A_NUMBER = 20  # float32 weights, gradient and two moments, and a copy and its gradient in bfloat16
Reduction = Literal["nothing", "everything", "whole copies"]
GroupFactors = tuple[Tensor, list[Tensor]]  # A of a group's matrices [E, matrices * R, K], and each one's B [E, R, N]
Gather = Callable[[Tensor, int], Tensor]  # a whole tensor from the ranks' parts of a dimension


@dataclass
class _Piece:
    """split: whether a rank holds a part. at: its first column in its region."""

    rows: int
    columns: int
    split: bool
    at: int = 0


class AdapterBank:
    """reduction: what of the gradients is summed over ranks."""

    def __init__(
        self,
        shape: LlamaShape,
        adapters: int,
        device: torch.device,
        dtype: torch.dtype,
        reduction: Reduction,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        """part: (rank, world) of tensor parallelism."""
        self._shape, self._adapters, self._reduction, self._part = shape, adapters, reduction, part
        self._device, (_, world) = device, part
        self._pieces = [list(_pieces(shape, group, world)) for _ in range(shape.layers) for group in GROUPS]
        ends = {True: 0, False: 0}
        for piece in (piece for pieces in self._pieces for piece in pieces):
            piece.at, ends[piece.split] = ends[piece.split], ends[piece.split] + piece.rows * piece.columns
        self._whole, self._split = ends[False], ends[True]
        count = adapters * (self._whole + self._split)
        self._master = torch.zeros(count, device=device).requires_grad_()
        self._copy, self._grad = (torch.zeros(count, device=device, dtype=dtype) for _ in range(2))
        self._master.grad = torch.zeros(count, device=device)
        self._optimizer = torch.optim.AdamW([self._master], RATE, BETAS, EPS, DECAY, fused=True)
        self.layers = self._leaves()

    def _leaves(self) -> list[dict[str, GroupFactors]]:
        copies, grads = self._regions(self._copy), self._regions(self._grad)
        found: list[dict[str, GroupFactors]] = [{} for _ in range(self._shape.layers)]
        for place, pieces in enumerate(self._pieces):
            leaves = []
            for piece in pieces:
                leaf = _view(copies, piece).detach().requires_grad_()
                leaf.grad = _view(grads, piece)
                leaves.append(leaf)
            found[place // len(GROUPS)][list(GROUPS)[place % len(GROUPS)]] = leaves[0], leaves[1:]
        return found

    def _regions(self, flat: Tensor) -> dict[bool, Tensor]:
        """[E, columns] of whole copies and of parts."""
        end = self._adapters * self._whole
        return {False: flat[:end].view(self._adapters, -1), True: flat[end:].view(self._adapters, -1)}

    @torch.no_grad()
    def load(self, place: int, adapter: int) -> None:
        """The adapter's first weights."""
        regions, drawn = self._regions(self._master), first_factors(self._shape, adapter, self._device)
        for pieces, modules in zip(self._pieces, list(GROUPS.values()) * self._shape.layers, strict=True):
            a, *bs = (_view(regions, piece)[place] for piece in pieces)
            for index, b in enumerate(bs[: len(modules)]):
                first_a, first_b = next(drawn)
                a[index * RANK : (index + 1) * RANK] = self._own(first_a, 1, pieces[0])
                b.copy_(self._own(first_b.t(), 1, pieces[1 + index]))
        self._copy.copy_(self._master)

    def _own(self, tensor: Tensor, dimension: int, piece: _Piece) -> Tensor:
        return tensor.chunk(self._part[1], dimension)[self._part[0]] if piece.split else tensor

    def reduce(self) -> None:
        """Sum over ranks what `reduction` says."""
        if self._reduction == "everything":
            dist.all_reduce(self._grad)
        elif self._reduction == "whole copies":
            dist.all_reduce(self._grad[: self._adapters * self._whole])

    @torch.no_grad()
    def update(self) -> None:
        """Clip each adapter's gradient and take AdamW's step."""
        assert self._master.grad is not None
        self._master.grad.copy_(self._grad)
        regions = self._regions(self._master.grad)
        squares = torch.linalg.vector_norm(regions[True], dim=1).square()
        if self._reduction == "whole copies":
            dist.all_reduce(squares)
        norms = (squares + torch.linalg.vector_norm(regions[False], dim=1).square()).sqrt()
        factors = (CLIP / (norms + 1e-6)).clamp(max=1.0).unsqueeze(1)
        for region in regions.values():
            region.mul_(factors)
        self._optimizer.step()
        self._copy.copy_(self._master)
        self.discard_gradients()

    def discard_gradients(self) -> None:
        self._grad.zero_()

    def gradients(self, place: int, gather: Gather = lambda tensor, dimension: tensor) -> list[Factors]:
        """Of each layer's matrices in turn."""
        found, regions = [], self._regions(self._grad)
        for pieces in self._pieces:
            a, *bs = (
                gather(_view(regions, piece)[place].clone(), 1) if piece.split else _view(regions, piece)[place].clone()
                for piece in pieces
            )
            found += [(a[index * RANK : (index + 1) * RANK], b.t()) for index, b in enumerate(bs)]
        return found


def _pieces(shape: LlamaShape, group: str, world: int) -> Iterator[_Piece]:
    """A of the group, and each matrix's B."""
    modules, sizes = GROUPS[group], widths(shape)
    inside, outside = (1, world) if group in COLUMN_PARALLEL else (world, 1)
    yield _Piece(len(modules) * RANK, sizes[modules[0]][0] // inside, world == 1 or inside > 1)
    for module in modules:
        yield _Piece(RANK, sizes[module][1] // outside, world == 1 or outside > 1)


def _view(regions: dict[bool, Tensor], piece: _Piece) -> Tensor:
    """[E, rows, columns]."""
    size = piece.rows * piece.columns
    return regions[piece.split][:, piece.at : piece.at + size].unflatten(1, (piece.rows, piece.columns))
