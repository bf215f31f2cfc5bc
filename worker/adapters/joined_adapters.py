"""Adapters of matrices that a base's files hold as one (model/joined_matrices.py), as PEFT and vLLM know them: of the whole.

Each part keeps ranks of its own: A has all parts' rows, one below the other, B each part's columns in that part's rows and
zeros elsewhere. So the whole changes by what its parts do, but for the order of sums. PEFT and vLLM want one rank for all
matrices, so those by themselves get rows and columns of zeros. Knows no files.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from worker.model.arena_layout import Target

Factors = tuple[Tensor, Tensor]  # A [r, in], B [out, r]


def by_stored_name(targets: Iterable[Target]) -> dict[str, list[Target]]:
    """The targets by the matrix of the base's files that they are, or are parts of."""
    found: dict[str, list[Target]] = {}
    for target in targets:
        found.setdefault(target.stored_name, []).append(target)
    return found


def rank_factor(targets: Iterable[Target]) -> int:
    """How many times a job's rank its adapter of these targets has for PEFT: as many as the most that one matrix joins."""
    return max(map(len, by_stored_name(targets).values()))


def joined(parts: Sequence[Target], weights: Mapping[str, Factors], rank: int, times: int) -> Factors:
    """A [times * rank, in] and B [out, times * rank] of the matrix that these are parts of, in float32 on the host. weights: by
    target, of this rank."""
    stored, one = parts[0].stored, parts[0]
    rows = one.out_features if stored is None else stored.whole
    a, b = torch.zeros(times * rank, one.in_features), torch.zeros(rows, times * rank)
    for place, part in enumerate(parts):
        ranks = slice(place * rank, (place + 1) * rank)
        own_a, own_b = weights[part.name]
        a[ranks] = own_a.to("cpu", torch.float32)
        b[places_of(part), ranks] = own_b.to("cpu", torch.float32)
    return a, b


def places_of(part: Target) -> Tensor:
    """Its rows in the matrix that it is a part of, int64 [out]."""
    return torch.arange(part.out_features) if part.stored is None else part.stored.places(part.out_features)


def parted(found: Mapping[str, Factors], targets: Iterable[Target]) -> tuple[dict[str, Factors], int]:
    """The factors of each target, of one rank, which comes second: the fewest ranks that keep all that any of them does. A rank
    whose column of B is zero does nothing. found: by stored name, of one rank; targets: of which the matrices are found."""
    targets = list(targets)
    columns = {part.name: found[part.stored_name][1][places_of(part)] for part in targets}
    alive = {name: b.ne(0).any(0) for name, b in columns.items()}
    rank = max(int(some.sum()) for some in alive.values())
    whole = next(iter(found.values()))[0].shape[0]
    rank = rank or whole  # nothing is trained yet: all of it is as good
    parts = {}
    for part in targets:
        chosen = torch.argsort(alive[part.name], descending=True, stable=True)[:rank].sort().values
        parts[part.name] = found[part.stored_name][0][chosen], columns[part.name][:, chosen]
    return parts, rank
