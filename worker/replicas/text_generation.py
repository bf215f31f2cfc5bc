"""Generates texts with adapters on the first replica, pass by pass, so that training steps go between.

One batch for all requests, each of which can be dropped. Holds arena rows and a key-value cache while it lasts. Knows no tasks
and no metrics. Where the device has no memory for the cache or a pass, all begins anew with half as many sequences at once.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from worker.adapters.arena_growth import NoRows
from worker.generate.batch_scheduler import GenerationLimits
from worker.generate.cuda.fused_runner import FusedRunner
from worker.generate.generator import Generator, Runner
from worker.generate.page_allocator import PageAllocator
from worker.generate.paged_cache import PagedCache
from worker.generate.plain_pass import PlainPass
from worker.generate.sequence import Completion, Sampling
from worker.generate.sequence import Sequence as Generated
from worker.model.arena import Slot
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.out_of_memory import is_out_of_memory
from worker.replicas.base_loader import BaseCopy
from worker.replicas.replica_set import Replicas

log = logging.getLogger(__name__)

MOST_SEQUENCES, PREFILL_TOKENS, PAGE_TOKENS = 256, 4096, 64


@dataclass(frozen=True)
class AdapterWeights:
    """An adapter on the host: float32 [rank, W]."""

    weights: Tensor
    alpha: float


@dataclass(frozen=True)
class TextRequest:
    """Prompts to answer with an adapter; None: with the base alone. sampling: each prompt's."""

    prompts: Sequence[tuple[int, ...]]
    sampling: Sequence[Sampling]
    adapter: AdapterWeights | None = None


class CannotGenerate(RuntimeError):
    """The device has no memory for a single sequence, or for an adapter's rows. The message is for the task's owner."""


class TextGeneration:
    """One batch of requests under way. `close` frees what it holds; a batch that is done, or raised, has closed itself."""

    def __init__(self, replicas: Replicas, requests: Mapping[int, TextRequest]) -> None:
        """Raises CannotGenerate."""
        self._replicas, self._base, self._requests = replicas, replicas.base, dict(requests)
        self._slots: dict[int, Slot | None] = {}
        self._sequences: dict[int, list[Generated]] = {}
        self._requesters: dict[Generated, int] = {}
        self._read = Counter[int]()
        self._generator: Generator | None = None
        self._most = MOST_SEQUENCES
        try:
            for key, request in requests.items():
                self._slots[key] = self._held(request.adapter)
        except NoRows as error:
            self.close()
            raise CannotGenerate(str(error)) from None

    def _held(self, adapter: AdapterWeights | None) -> Slot | None:
        return None if adapter is None else self._replicas.hold(adapter.weights, adapter.alpha)

    @property
    def done(self) -> bool:
        return self._generator is not None and not self._generator.busy

    def advance(self) -> Mapping[int, int]:
        """One pass. Returns how many tokens each request has read since all began, the last time anew. Raises
        CannotGenerate."""
        try:
            if self._generator is None:
                self._generator = self._begun()
            moved = self._generator.step()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                self.close()
                raise
        else:
            if self.done:
                self._free()
            for one in moved:
                self._read[self._requesters[one]] += len(one.prompt) if len(one.generated) == 1 else 1
            return self._read
        # Outside the handler, whose traceback would keep the pass's tensors in memory.
        self._shrink()
        return self._read

    def drop(self, key: int) -> None:
        """Give a request up. The others' texts are what they would have been beside it."""
        del self._requests[key]
        for one in self._sequences.pop(key, []):
            del self._requesters[one]
            if one.completion is None and self._generator is not None:
                self._generator.cancel(one)
        slot = self._slots.pop(key, None)
        if slot is not None:
            self._replicas.first.adapters.drop(slot)

    def results(self) -> dict[int, list[Completion]]:
        """The finished texts of each request, in the order of its prompts."""
        return {key: [one.completion for one in own if one.completion is not None] for key, own in self._sequences.items()}

    def close(self) -> None:
        """Give everything up."""
        self._free()
        self._forget()

    def _begun(self) -> Generator:
        positions = self._base.max_positions
        self._sequences = {
            key: [
                Generated(prompt, _within(sampling, positions - len(prompt)), self._slots[key])
                for prompt, sampling in zip(request.prompts, request.sampling, strict=True)
            ]
            for key, request in self._requests.items()
        }
        self._requesters = {one: key for key, own in self._sequences.items() for one in own}
        every = list(self._requesters)
        pages = sorted((-(-one.most_tokens // PAGE_TOKENS) for one in every), reverse=True)
        count = 1 + sum(pages[: self._most])
        limits = GenerationLimits(self._most, PREFILL_TOKENS, positions)
        generator = generator_of(self._base, count, limits)
        for one in every:
            generator.add(one)
        return generator

    def _forget(self) -> None:
        self._generator, self._sequences, self._requesters = None, {}, {}
        self._read.clear()

    def _shrink(self) -> None:
        self._forget()
        self._base.trainer.release_caches()
        if self._most == 1:
            self.close()
            raise CannotGenerate(
                "the device had no memory to generate one text at a time; lower evaluation.max_new_tokens or max_seq_len, or "
                "take a worker with more memory"
            )
        self._most //= 2
        log.warning("no memory to generate texts: %d at a time from now on", self._most)

    def _free(self) -> None:
        for slot in self._slots.values():
            if slot is not None:
                self._replicas.first.adapters.drop(slot)
        self._slots = {}
        if self._generator is not None:
            self._generator.release()


def generator_of(base: BaseCopy, pages: int, limits: GenerationLimits) -> Generator:
    """A generator on this base and its arena, with a cache of so many pages of PAGE_TOKENS tokens."""
    trainer = base.trainer
    cache = PagedCache(trainer.backbone, pages, PAGE_TOKENS)
    runner: Runner = FusedRunner(trainer, cache) if isinstance(trainer, DeviceTrainer) else PlainPass(trainer, cache)
    return Generator(runner, PageAllocator(pages, PAGE_TOKENS), limits, base.decode, base.end_tokens)


def _within(sampling: Sampling, most: int) -> Sampling:
    """The same, for at most so many new tokens, and at least one."""
    return replace(sampling, max_new_tokens=max(1, min(sampling.max_new_tokens, most)))
