"""NF4 quantisation of frozen weights: 4 bits a number, one scale per block of 64, scales in 8 bits on request. Knows no layers.

Dettmers et al. 2023 (QLoRA), section 3, bit for bit as bitsandbytes does it on a CPU: each number, divided by the largest
magnitude of its block, is rounded to the nearest of 16 levels, on a tie to the lower one; blocks run row by row. `double`
stores the scales minus their mean as codes of the signed dynamic map in blocks of 256. Plain PyTorch; nf4_decode.py decodes on
CUDA.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from grouped_lora.base.nf4_decode import BLOCK, SCALES_BLOCK, decode_nf4

# QLoRA, appendix E: quantiles of the normal distribution, 0 included, in float32
LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334),
    *(-0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_LEAST = 1e-38  # lower bound of a divisor
_HALF_STEPS = 32767.5


@dataclass(frozen=True)
class Scales:
    """One scale per block: fp32 [blocks]; or uint8 codes [blocks] with their own scales fp32 [ceil(blocks / 256)] and their
    mean."""

    values: Tensor
    outer: Tensor | None = None
    mean: Tensor | None = None

    def plain(self) -> Tensor:
        """The scales decoded: fp32 [blocks]."""
        if self.outer is None or self.mean is None:
            return self.values
        units = dynamic_map(self.values.device).index_select(0, self.values.int())
        return units.mul_(_spread(self.outer, SCALES_BLOCK, len(units))).add_(self.mean)


@dataclass(frozen=True)
class Matrix:
    """One quantised matrix. codes uint8 [ceil(N K / 2)]: two numbers a byte, the earlier one in the upper half."""

    rows: int
    columns: int
    codes: Tensor
    scales: Scales

    def write(self, out_NK: Tensor) -> None:
        """Decode into a contiguous tensor: products in fp32, rounded once."""
        if out_NK.is_cuda:
            levels, map_ = _levels(out_NK.device), dynamic_map(out_NK.device)
            decode_nf4(self.codes, self.scales.values, self.scales.outer, self.scales.mean, levels, map_, out_NK)
            return
        count = self.rows * self.columns
        units = _pairs(self.codes.device).index_select(0, self.codes.int()).view(-1)[:count]
        out_NK.view(-1).copy_(units.mul_(_spread(self.scales.plain(), BLOCK, count)))


@dataclass(frozen=True)
class Nf4Weight:
    """Matrices [N_i, K] stacked by rows, each quantised by itself. dtype: the type it decodes to."""

    parts: tuple[Matrix, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, weights: Sequence[Tensor], double: bool = False) -> "Nf4Weight":
        """Quantise weights [N_i, K] of one dtype."""
        return cls(tuple(quantise(weight, double) for weight in weights), weights[0].dtype)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((sum(part.rows for part in self.parts), self.parts[0].columns))

    def dense(self) -> Tensor:
        """Decode to a new tensor [N, K]."""
        out_NK = torch.empty(self.shape, dtype=self.dtype, device=self.parts[0].codes.device)
        row = 0
        for part in self.parts:
            part.write(out_NK[row : row + part.rows])
            row += part.rows
        return out_NK

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that stores the weight."""
        for part in self.parts:
            scales = part.scales
            yield from (kept for kept in (part.codes, scales.values, scales.outer, scales.mean) if kept is not None)


def quantise(weight_NK: Tensor, double: bool = False) -> Matrix:
    """NF4 of a matrix of any float dtype."""
    rows, columns = weight_NK.shape
    units, scales = _units(weight_NK.detach().reshape(-1).float())
    if len(units) % 2:
        units = torch.nn.functional.pad(units, (0, 1))
    levels = _levels(units.device)
    codes = torch.bucketize(units, (levels[:-1] + levels[1:]) / 2, out_int32=True).to(torch.uint8)
    packed = (codes[::2] << 4) | codes[1::2]
    return Matrix(rows, columns, packed, _coded(scales) if double else Scales(scales))


def _units(flat: Tensor) -> tuple[Tensor, Tensor]:
    """(numbers divided by their block's scale, scales). As bitsandbytes does: whole blocks are multiplied by the scale's
    inverse, the partial last block is divided."""
    whole = len(flat) // BLOCK * BLOCK
    blocks, rest = flat[:whole].view(-1, BLOCK), flat[whole:]
    scales = blocks.abs().amax(1)
    units = (blocks * (1.0 / scales.clamp(min=_LEAST))[:, None]).clamp_(-1, 1).view(-1)
    if len(rest):
        last = rest.abs().amax().clamp(min=_LEAST)
        units, scales = torch.cat([units, (rest / last).clamp_(-1, 1)]), torch.cat([scales, last[None]])
    return units, scales


def _coded(scales: Tensor) -> Scales:
    """Scales in 8 bits. bitsandbytes finds the nearest code in a table of 65,536 even steps from -1 to 1; a block of scales
    that all equal the mean gets code 0."""
    mean = scales.mean()
    off = scales - mean
    outer = torch.nn.functional.pad(off.abs(), (0, -len(off) % SCALES_BLOCK)).view(-1, SCALES_BLOCK).amax(1)
    units = (off * _spread(1.0 / outer, SCALES_BLOCK, len(off))).nan_to_num_(-1.0).clamp_(-1, 1)
    steps = units.add_(1).mul_(_HALF_STEPS).add_(0.5).long()
    return Scales(_nearest(off.device)[steps], outer, mean)


def _spread(scales: Tensor, block: int, count: int) -> Tensor:
    """Each scale repeated for all numbers of its block, [count]."""
    return scales[:, None].expand(-1, block).reshape(-1)[:count]


@cache
def _levels(device: torch.device) -> Tensor:
    return torch.tensor(LEVELS, device=device)


@cache
def _pairs(device: torch.device) -> Tensor:
    """[256, 2]: the two levels of each byte."""
    byte = torch.arange(256, device=device)
    return _levels(device)[torch.stack([byte >> 4, byte & 15], 1)]


@cache
def _nearest(device: torch.device) -> Tensor:
    """uint8 [65536]: the nearest code for each step from -1 to 1."""
    values = dynamic_map(device).double()
    steps = torch.arange(2**16, device=device).double() / _HALF_STEPS - 1
    return torch.bucketize(steps, (values[:-1] + values[1:]) / 2).to(torch.uint8)


@cache
def dynamic_map(device: torch.device) -> Tensor:
    """fp32 [256], ascending: the signed dynamic map with bitsandbytes' exact bits, from which blockwise_8bit.py's formula
    differs.

    Decade i of 7 has 2^i cell centres of each sign; 0 and 1 are added.
    """
    values = [0.0, 1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 2**decade + 1)
        centres = 10.0 ** (decade - 6) * ((edges[:-1] + edges[1:]) / 2)
        values += [*centres.tolist(), *(-centres).tolist()]
    return torch.tensor(sorted(values), device=device)
