"""Blockwise 8-bit optimizer moments in plain PyTorch, in blocks of 256 columns of one row. adamw.py's kernel does the same
inline.

Dettmers et al., 8-bit Optimizers via Block-wise Quantization, sections 2.1-2.2: a block is divided by its largest magnitude,
and a code is the nearest value of its decade in the dynamic map of bitsandbytes (7 decades; decade i has 2^i values signed,
2^(i+1) unsigned). Signed: 127 is 1, 255 is 0, 128 + c is minus c; there is no -1. Unsigned: 255 is 1, 0 is 0.
"""

import torch
from torch import Tensor

BLOCK = 256
LAST_NEGATIVE = 1.0 - 0.45 / 64  # the largest magnitude of a negative value
_LEAST_SIGNED = 2.75e-7  # half of the smallest magnitude


def code_map(signed: bool) -> Tensor:
    """fp32 [256]: the value in [-1, 1] of each code."""
    codes = torch.arange(256)
    ordinal = (codes & 127 if signed else codes) + 1
    exponent = (ordinal.double().log2() + 1e-9).floor()
    count = 2.0**exponent
    decade = exponent if signed else exponent - 1
    values = 10.0 ** (decade - 6) * (0.1 + 0.9 * ((ordinal - count) / count + 0.5 / count))
    if signed:
        values[127] = 1.0
        values[128:] = -values[:128]
        values[255] = 0.0
    else:
        values[0], values[255] = 0.0, 1.0
    return values.float()


def decode(codes: Tensor, scales: Tensor, signed: bool) -> Tensor:
    """fp32 [rows, columns] of codes uint8 [rows, columns] and scales fp32 [rows, ceil(columns / 256)]."""
    values = code_map(signed).to(codes.device)[codes.long()]
    return values * scales.repeat_interleave(BLOCK, 1)[:, : codes.shape[1]]


def encode(values: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """(codes, scales) of fp32 [rows, columns]: each block is divided by its largest magnitude. `decode` is the inverse."""
    blocks = _blocks(values)
    scales = blocks.abs().amax(2)
    return _codes(blocks, scales, signed, values.shape[1]), scales


def encode_again(values: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """Re-encodes decoded values: codes and scales that decode to the same bits. Where a block's largest magnitude is negative,
    it is that of the last negative code, and the scale one of the few whose product with that code rounds to it."""
    if not signed:
        return encode(values, signed)
    blocks, columns = _blocks(values), values.shape[1]
    above, below = blocks.amax(2).clamp_min(0), (-blocks).amax(2).clamp_min(0)
    positive = above > below
    divided = below / LAST_NEGATIVE
    found = torch.where(positive, above, divided)
    codes = _codes(blocks, found, signed, columns)
    for nearby in (_next(divided, 1), _next(divided, -1)):
        off = (_blocks(decode(codes, found, signed)) != blocks).any(2) & ~positive
        if not off.any():
            break
        found = torch.where(off, nearby, found)
        codes = _codes(blocks, found, signed, columns)
    return codes, found


def _next(values: Tensor, way: float) -> Tensor:
    return torch.nextafter(values, torch.full_like(values, way * torch.inf))


def _blocks(values: Tensor) -> Tensor:
    rows, columns = values.shape
    padded = torch.nn.functional.pad(values, (0, -columns % BLOCK))
    return padded.view(rows, -1, BLOCK)


def _codes(blocks: Tensor, scales: Tensor, signed: bool, columns: int) -> Tensor:
    unit = (blocks / torch.where(scales > 0, scales, 1.0)[..., None]).reshape(blocks.shape[0], -1)[:, :columns]
    magnitude = unit.abs().clamp_max(1.0)
    edges = 10.0 ** torch.arange(-6, 0, device=unit.device)
    decade = (magnitude[..., None] > edges).sum(-1)
    exponent = decade if signed else decade + 1
    count = 2.0**exponent
    place = ((magnitude * 10.0 ** (6 - decade) - 0.1) / 0.9 * count).clamp_min(0).minimum(count - 1).long()
    code = place + (1 << exponent) - 1
    top = (decade == 6) & (magnitude > 1 - 0.225 / count)
    if signed:
        code = torch.where(unit < 0, code + 128, torch.where(top, 127, code))
        return torch.where(magnitude < _LEAST_SIGNED, 255, code).to(torch.uint8)
    # A non-zero second moment is never stored as 0: the step would be divided by eps alone.
    return torch.where(magnitude == 0, 0, torch.where(top, 255, code)).to(torch.uint8)
