"""Generator: takes sequences, and turns them into texts pass by pass. Decide, run, choose, record. Knows no model.

`step` runs one pass, so that a caller can put training steps between them.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Many
from typing import Protocol

from torch import Tensor

from worker.generate.batch_scheduler import BatchScheduler, BatchStep, GenerationLimits
from worker.generate.page_allocator import PageAllocator
from worker.generate.sampler import choose, logprobs
from worker.generate.sequence import Sequence
from worker.generate.text_decoder import Decode


class Runner(Protocol):
    """What runs passes: PlainPass, or FusedPass of `cuda/`."""

    def run(self, step: BatchStep) -> Tensor:
        """Logits of each sequence's last token, [sequences, V], in the step's order."""
        ...


class _NoRunner:
    """Of a generator that was released."""

    def run(self, step: BatchStep) -> Tensor:
        raise RuntimeError("the generator was released")


class Generator:
    """decode: tokens as text, without special tokens. end_tokens: any of them ends a sequence."""

    def __init__(
        self, runner: Runner, pages: PageAllocator, limits: GenerationLimits, decode: Decode, end_tokens: Iterable[int] = ()
    ) -> None:
        self._runner, self._decode, self._end_tokens = runner, decode, frozenset(end_tokens)
        self._scheduler = BatchScheduler(limits, pages)
        self.passes = 0  # run since the start

    @property
    def busy(self) -> bool:
        return self._scheduler.busy

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; it joins the batch when there is room. Raises SequenceTooLongError."""
        self._scheduler.add(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Take a sequence out that nobody waits for any more."""
        self._scheduler.leave(sequence)

    def step(self) -> tuple[Sequence, ...]:
        """One pass; returns the sequences that it gave a token. Those that ended have a `completion`."""
        step = self._scheduler.next()
        if step is None:
            return ()
        logits = self._runner.run(step)
        self.passes += 1
        samplings = [sequence.sampling for sequence in step.sequences]
        chosen = choose(logits, samplings, [len(sequence.generated) for sequence in step.sequences])
        for sequence, token, logprob in zip(step.sequences, chosen, logprobs(logits, chosen, samplings), strict=True):
            sequence.append(token, logprob, self._end_tokens, self._decode)
            if sequence.completion is not None:
                self._scheduler.leave(sequence)
        return step.sequences

    def release(self) -> None:
        """Drop the runner, and with it the cache and its graphs; no sequence is left to run."""
        self._runner = _NoRunner()

    def run(self, sequences: Many[Sequence]) -> None:
        """Generate all of them to their ends."""
        for sequence in sequences:
            self.add(sequence)
        while self.busy:
            self.step()
