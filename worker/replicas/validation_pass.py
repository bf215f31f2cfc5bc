"""Validation losses of many jobs in one pass over the flat axis, each over its own task's held-out rows. Stops none early:
policy/early_exit/ decides that."""

import math
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch

from contract.row_scores import Metric, RowScores
from worker.data.dataset import TokenRows
from worker.model.arena import Slot
from worker.model.plain.trainer import LossSum, OutOfMemory, Trainer
from worker.policy.packing import pack_pieces, split_batch
from worker.replicas.adapter_sequences import AdapterSequences, segments_of
from worker.replicas.dpo_loss import pair_error, pair_loss, preference_loss

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class EvaluationRequest:
    """The adapter to evaluate, or without a slot the base. Under dpo with its beta and the reference's log-probabilities of the
    rows' sequences. scored: by which metric each row is scored, if rows are. part: the result of so many first rows is wanted
    by itself, too."""

    slot: Slot | None
    rows: TokenRows
    beta: float | None = None
    reference: Sequence[float] = ()
    scored: Metric | None = None
    part: int | None = None
    piece_tokens: int | None = None  # see AdapterSequences
    placement: str | None = None


@dataclass(frozen=True)
class ValidationResult:
    """loss: mean nats per label over all rows, with the share of labels that are their logits' argmax as accuracy; under dpo
    the mean loss of the pairs, with their accuracy and margin. scores: of each row, if they were asked for and are finite.
    part: of the first rows alone, if it was asked for."""

    loss: float
    tokens: int
    accuracy: float | None = None
    margin: float | None = None
    scores: RowScores | None = None
    part: "ValidationResult | None" = None


Pending = Callable[[], ValidationResult]  # waits for the device


def evaluate(
    trainer: Trainer, requests: Mapping[Key, EvaluationRequest], budget: int, on_progress: Callable[[], None]
) -> Iterator[tuple[Key, ValidationResult]]:
    """Yield the requests' results, job by job, also before OutOfMemory. Each is read once the pass after its last is launched:
    the device does not wait for the host in between. How a request's rows are split depends on it and `budget` alone. On a
    sharded base all ranks come, with requests or without, and each result is read at once: while they are together, it is
    watched whether one is lost (RankWatch)."""
    known, coming = list[tuple[Key, Pending]](), list[tuple[Key, Pending]]()  # by passes before the last; by the last
    try:
        for one in _results(trainer, requests, budget, on_progress, together=True):
            if one is None:
                yield from _read(known)
                known, coming = coming, []
            elif trainer.backbone.shards is None:
                coming.append(one)
            else:
                yield from _read([one])
    except OutOfMemory:
        yield from _read(known + coming)
        raise
    yield from _read(known + coming)


def _read(results: Sequence[tuple[Key, Pending]]) -> Iterator[tuple[Key, ValidationResult]]:
    for key, result in results:
        yield key, result()


def evaluation_passes(
    trainer: Trainer, requests: Mapping[Key, EvaluationRequest], budget: int, on_progress: Callable[[], None]
) -> Generator[None, None, dict[Key, ValidationResult]]:
    """As `evaluate`, pass by pass, for the first rank alone: yields after each pass, and returns the results."""
    found: dict[Key, ValidationResult] = {}
    for known in _results(trainer, requests, budget, on_progress):
        if known is None:
            yield
        else:
            found[known[0]] = known[1]()
    return found


def log_probabilities(
    trainer: Trainer, wanted: Mapping[Key, AdapterSequences], budget: int, on_progress: Callable[[], None]
) -> dict[Key, list[float]]:
    """log p of every sequence's labels, summed. On a sharded base all ranks come, with sequences or without."""
    passes = log_probability_passes(trainer, wanted, budget, on_progress, together=True)
    while True:
        try:
            next(passes)
        except StopIteration as done:
            found: dict[Key, list[float]] = done.value
            return found


def log_probability_passes(
    trainer: Trainer,
    wanted: Mapping[Key, AdapterSequences],
    budget: int,
    on_progress: Callable[[], None],
    together: bool = False,
) -> Generator[None, None, dict[Key, list[float]]]:
    """As `log_probabilities`, pass by pass: yields after each pass, and returns the results. together: with all ranks, not for
    the first alone."""
    found: dict[Key, list[float]] = {}
    for known in _loss_sums(trainer, wanted, set(wanted), budget, on_progress, together):
        if known is None:
            yield
        else:
            found[known[0]] = [-nll for nll in _totals(known[1])]
    return found


def _results(
    trainer: Trainer,
    requests: Mapping[Key, EvaluationRequest],
    budget: int,
    on_progress: Callable[[], None],
    together: bool = False,
) -> Iterator[tuple[Key, Pending] | None]:
    """None after each pass; before it, what reads the result of each request that is complete."""
    wanted = {
        key: AdapterSequences(
            request.slot,
            request.rows.sequences,
            request.rows.lengths,
            piece_tokens=request.piece_tokens,
            placement=request.placement,
        )
        for key, request in requests.items()
    }
    per_sequence = {key for key, request in requests.items() if request.beta is not None or request.scored is not None}
    for known in _loss_sums(trainer, wanted, per_sequence, budget, on_progress, together):
        yield known if known is None else (known[0], partial(_result, requests[known[0]], known[1]))


def _loss_sums(
    trainer: Trainer,
    wanted: Mapping[Key, AdapterSequences],
    per_sequence: set[Key],
    budget: int,
    on_progress: Callable[[], None],
    together: bool,
) -> Iterator[tuple[Key, list[LossSum]] | None]:
    """Each key's loss sums in the order of its sequences: one for each piece, or for keys in `per_sequence` one for each
    sequence. None after each pass."""
    keys = list(wanted)
    pieces = [split_batch(place, wanted[key].lengths, wanted[key].piece_tokens or budget) for place, key in enumerate(keys)]
    due = {place: len(own) for place, own in enumerate(pieces)}
    known: dict[int, dict[int, list[LossSum]]] = {place: {} for place in due}
    # Job by job, so that each completes early.
    passes = sorted(pack_pieces(pieces, budget), key=lambda pieces: (pieces[0].job, pieces[0].first))
    with trainer.backbone.gathers.together(len(passes), False, on_progress) if together else nullcontext():
        for micro_batch in passes:
            segments, segment_pieces = [], []
            for piece in micro_batch:
                key = keys[piece.job]
                for part in segments_of(wanted[key], piece.first, piece.last, key in per_sequence):
                    segments.append(part)
                    segment_pieces.append((piece.job, piece.first))
            try:
                losses = trainer.evaluate(segments)
            except OutOfMemory as error:
                error.sole_placement = wanted[keys[micro_batch[0].job]].placement if len(micro_batch) == 1 else None
                raise
            for (place, first), loss in zip(segment_pieces, losses, strict=True):
                known[place].setdefault(first, []).append(loss)
            on_progress()
            for place in [piece.job for piece in micro_batch]:
                if len(known[place]) == due[place]:
                    sums = known.pop(place)
                    yield keys[place], [loss for first in sorted(sums) for loss in sums[first]]
            yield None


def _totals(sums: Sequence[LossSum]) -> list[float]:
    totals: list[float] = torch.stack([loss.total for loss in sums]).tolist()
    return totals


def _result(request: EvaluationRequest, sums: Sequence[LossSum]) -> ValidationResult:
    totals, labels, hits = _totals(sums), [loss.labels for loss in sums], torch.stack([loss.hits for loss in sums]).tolist()
    whole = _result_of(request, totals, labels, hits, sum(request.rows.lengths))
    if request.part is None:
        return whole
    assert request.scored is not None, "a part's rows are known where rows are scored"
    first = request.part * request.rows.per_row
    return replace(whole, part=_result_of(replace(request, scored=None), totals[:first], labels[:first], hits[:first], 0))


def _result_of(
    request: EvaluationRequest, totals: list[float], labels: list[int], hits: list[float], tokens: int
) -> ValidationResult:
    if request.beta is None:
        scores = _scores(request, "loss", totals, labels) if request.scored is not None else None
        return ValidationResult(sum(totals) / sum(labels), tokens, sum(hits) / sum(labels), scores=scores)
    found = preference_loss(request.beta, [-nll for nll in totals], request.reference[: len(totals)])
    score = pair_error if request.scored == "error" else pair_loss
    asked = request.scored is not None and math.isfinite(found.loss)
    scores = _scores(request, request.scored or "loss", list(map(score, found.margins)), []) if asked else None
    return ValidationResult(found.loss, tokens, found.accuracy, found.margin, scores)


def _scores(request: EvaluationRequest, metric: Metric, totals: list[float], weights: list[int]) -> RowScores | None:
    if not all(map(math.isfinite, totals)):
        return None
    return RowScores(metric=metric, totals=totals, weights=weights, clusters=request.rows.clusters)
