"""Continuous batching: which sequences the next pass works on. Pure: decides, and runs nothing. (Orca, Yu et al. 2022.)

A sequence that joins is given pages for its prompt and for every token it may generate, so that none is ever taken out again
for want of memory. Waiting sequences join first come, first served, before the next decode step.
"""

from collections import deque
from dataclasses import dataclass

from worker.generate.page_allocator import PageAllocator
from worker.generate.sequence import Sequence


class SequenceTooLongError(ValueError):
    """A sequence could never run here; the message says which limit it breaks."""


@dataclass(frozen=True)
class GenerationLimits:
    """sequences: that decode together. prefill_tokens: of prompts in one pass; a longer prompt takes a pass of its own.
    positions: of a sequence, prompt and generated tokens together."""

    sequences: int
    prefill_tokens: int
    positions: int


@dataclass(frozen=True)
class BatchStep:
    """The next pass: sequences that join with their whole prompts, or all running ones by one token each."""

    sequences: tuple[Sequence, ...]
    prefill: bool


class BatchScheduler:
    def __init__(self, limits: GenerationLimits, pages: PageAllocator) -> None:
        self._limits, self._pages = limits, pages
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises SequenceTooLongError."""
        positions, most = len(sequence.prompt) + sequence.sampling.max_new_tokens, self._limits.positions
        if positions > most:
            raise SequenceTooLongError(
                f"a prompt of {len(sequence.prompt)} tokens and max_new_tokens {sequence.sampling.max_new_tokens} are "
                f"{positions} positions; the base has {most}: shorten the prompt or lower max_new_tokens"
            )
        if self._pages.pages_for(sequence.most_tokens) > self._pages.total:
            room = self._pages.total * self._pages.page_tokens
            raise SequenceTooLongError(f"{positions} positions do not fit in the key-value cache of {room} tokens")
        self._waiting.append(sequence)

    def next(self) -> BatchStep | None:
        """The next pass; None where nothing is left to do."""
        joined = self._join()
        if joined:
            return BatchStep(joined, prefill=True)
        return BatchStep(tuple(self._running), prefill=False) if self._running else None

    def _join(self) -> tuple[Sequence, ...]:
        joined: list[Sequence] = []
        tokens = 0
        while self._waiting and len(self._running) < self._limits.sequences:
            first = self._waiting[0]
            tokens += len(first.prompt)
            pages = self._pages.pages_for(first.most_tokens)
            if pages > self._pages.free or (joined and tokens > self._limits.prefill_tokens):
                break
            self._waiting.popleft()
            first.pages = self._pages.take(pages)
            self._running.append(first)
            joined.append(first)
        return tuple(joined)

    def leave(self, sequence: Sequence) -> None:
        """Take a sequence out, finished or not, and free its pages."""
        if sequence in self._running:
            self._running.remove(sequence)
            self._pages.give_back(sequence.pages)
            sequence.pages = ()
        else:
            self._waiting.remove(sequence)
