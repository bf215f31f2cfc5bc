"""Chooses the next tokens from logits: greedy, temperature, top-p; and their log-probabilities. Knows no sequences' texts.

Each row is drawn for by itself from (seed, number of the token), so that a sequence's tokens are the same beside any others.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from worker.generate.sequence import Sampling, TokenLogprob

CHUNK = 64  # rows of full probabilities at a time
_MASK = 2**64 - 1


def uniform(seed: int, place: int) -> float:
    """A number in [0, 1) of a sequence's `place`-th token: SplitMix64 (Steele et al. 2014) over both."""
    state = (seed * 0x9E3779B97F4A7C15 + (place + 1) * 0xD1B54A32D192ED03) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = ((state ^ (state >> shift)) * factor) & _MASK
    return ((state ^ (state >> 31)) >> 11) / 2**53


def choose(logits_NV: Tensor, samplings: Sequence[Sampling], places: Sequence[int]) -> list[int]:
    """The next token of every row. places: how many tokens each row's sequence has generated."""
    chosen: list[int] = logits_NV.argmax(1).tolist()
    drawn = [row for row, sampling in enumerate(samplings) if sampling.temperature > 0]
    for at in range(0, len(drawn), CHUNK):
        rows = drawn[at : at + CHUNK]
        tokens = _drawn(logits_NV[rows], [samplings[row] for row in rows], [places[row] for row in rows])
        for row, token in zip(rows, tokens, strict=True):
            chosen[row] = token
    return chosen


def _drawn(logits_NV: Tensor, samplings: Sequence[Sampling], places: Sequence[int]) -> list[int]:
    """The inverse of the cumulative distribution over tokens in order of probability, at a uniform number."""
    wide = torch.float64
    column = lambda values: torch.tensor(values, dtype=wide, device=logits_NV.device)[:, None]  # noqa: E731
    below_NV = logits_NV.to(wide) - logits_NV.amax(1, keepdim=True)  # none is infinite, however low the temperature
    p = torch.softmax(below_NV.div_(column([s.temperature for s in samplings])), 1)
    del below_NV  # as large as what sorting takes
    p, order = p.sort(dim=1, descending=True, stable=True)
    sums = p.cumsum(1)
    nucleus = (sums - p) < column([s.top_p for s in samplings])  # the first token always belongs to it
    mass = torch.where(nucleus, p, 0.0).cumsum(1)
    target = column([uniform(s.seed, place) for s, place in zip(samplings, places, strict=True)]) * mass[:, -1:]
    at = torch.searchsorted(mass, target, right=True).clamp(max=p.shape[1] - 1)
    last = nucleus.sum(1, keepdim=True) - 1  # rounding may point behind the nucleus; an adapter that is NaN has none
    tokens: list[int] = order.gather(1, torch.minimum(at, last).clamp(min=0))[:, 0].tolist()
    return tokens


def logprobs(logits_NV: Tensor, chosen: Sequence[int], samplings: Sequence[Sampling]) -> list[TokenLogprob | None]:
    """Of every row that wants them; None for the others."""
    found: list[TokenLogprob | None] = [None] * len(chosen)
    wanted = [row for row, sampling in enumerate(samplings) if sampling.logprobs is not None]
    for at in range(0, len(wanted), CHUNK):
        rows = wanted[at : at + CHUNK]
        logp = torch.log_softmax(logits_NV[rows].float(), 1)
        best = logp.topk(min(logp.shape[1], max(1, *(samplings[row].logprobs or 0 for row in rows))), 1)
        picked = logp.gather(1, torch.tensor([[chosen[row]] for row in rows], device=logp.device))
        for row, own, values, tokens in zip(rows, picked.tolist(), best.values.tolist(), best.indices.tolist(), strict=True):
            count = samplings[row].logprobs or 0
            top = tuple(zip(tokens[:count], values[:count], strict=True))
            found[row] = TokenLogprob(chosen[row], own[0], top)
    return found
