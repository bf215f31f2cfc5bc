"""Generates texts with adapters on the first replica, pass by pass, so that training steps go between.

One batch for all requests, each of which can be dropped. Holds arena rows and a key-value cache while it lasts, as large as
the room that it is given: with less of it, fewer sequences run at once. Knows no tasks and no metrics. Where the device has no
memory for the cache or a pass after all, or training needs it, all begins anew with half as many sequences at once.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from grouped_lora.base.frozen_product import whole_rows
from torch import Tensor

from worker.adapters.arena_growth import NoRows
from worker.adapters.job_checkpoint import UnreadableWeights
from worker.generate.batch_scheduler import GenerationLimits
from worker.generate.cuda.fused_runner import MAX_GRAPHS, FusedRunner
from worker.generate.generator import Generator, Runner
from worker.generate.page_allocator import PageAllocator
from worker.generate.paged_cache import PagedCache
from worker.generate.plain_pass import PlainPass
from worker.generate.sequence import Completion, Sampling
from worker.generate.sequence import Sequence as Generated
from worker.model.arena import Slot
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.out_of_memory import is_out_of_memory
from worker.model.plain.trainer import Trainer
from worker.policy.generation_memory import PAGE_TOKENS, PREFILL_TOKENS, GenerationShape, pages_for
from worker.replicas.base_loader import DeviceBase
from worker.replicas.replica_set import Replicas

log = logging.getLogger(__name__)

MOST_SEQUENCES = 256
Room = Callable[[int], int]  # bytes that a cache for so many sequences at once may take


@dataclass(frozen=True)
class AdapterWeights:
    """An adapter on the host: float32 [rank, W]."""

    weights: Tensor
    alpha: float


@dataclass(frozen=True)
class TextRequest:
    """Prompts to answer with an adapter, which is read when it is given rows; None: with the base alone. sampling: each
    prompt's."""

    prompts: Sequence[tuple[int, ...]]
    sampling: Sequence[Sampling]
    adapter: Callable[[], AdapterWeights] | None = None


class CannotGenerate(RuntimeError):
    """The device has no memory for a single sequence. The message is for the task's owner."""


class TextGeneration:
    """One batch of requests under way. `close` frees what it holds; a batch that is done, or raised, has closed itself."""

    def __init__(self, replicas: Replicas, requests: Mapping[int, TextRequest]) -> None:
        """Raises NoRows where the device has none for an adapter, and UnreadableWeights."""
        self._replicas, self._base, self._requests = replicas, replicas.base, dict(requests)
        self._slots: dict[int, Slot | None] = {}
        self._sequences: dict[int, list[Generated]] = {}
        self._requesters: dict[Generated, int] = {}
        self._read = Counter[int]()
        self._generator: Generator | None = None
        self._most = MOST_SEQUENCES
        self._shape, self._pages = generation_shape(self._base.trainer), 0
        try:
            for key, request in requests.items():
                self._slots[key] = self._held(request.adapter)
        except (NoRows, UnreadableWeights):
            self.close()
            raise

    def _held(self, adapter: Callable[[], AdapterWeights] | None) -> Slot | None:
        if adapter is None:
            return None
        read = adapter()
        return self._replicas.hold(read.weights, read.alpha)

    @property
    def done(self) -> bool:
        return self._generator is not None and not self._generator.busy

    @property
    def held_bytes(self) -> int:
        """Of its cache."""
        return self._shape.held_bytes(self._pages, self._most) if self._generator is not None else 0

    def advance(self, room: Room) -> Mapping[int, int]:
        """One pass. room: for the cache, where it has none yet. Returns how many tokens each request has read since all began,
        the last time anew. Raises CannotGenerate."""
        try:
            if self._generator is None:
                self._generator = self._begun(room)
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
        if self._most == 1:
            self._base.trainer.release_caches()
            self.close()
            raise CannotGenerate(
                "the device had no memory to generate one text at a time; lower evaluation.max_new_tokens or max_seq_len, or "
                "take a worker with more memory"
            )
        self.give_way()
        return self._read

    def give_way(self) -> None:
        """Give up the cache; all begins anew, with half as many sequences at once."""
        if self._generator is not None:
            self._generator.release()
        self._forget()
        self._base.trainer.release_caches()
        self._most = max(1, self._most // 2)
        log.warning("no memory to generate texts: %d at a time from now on", self._most)

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

    def _begun(self, room: Room) -> Generator:
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
        pages = sorted((pages_for(one.most_tokens) for one in every), reverse=True)
        self._most = min(self._most, len(every))
        fitting = self._shape.pages_within(room(self._most), self._most)
        self._pages = 1 + max(pages[0], min(sum(pages[: self._most]), fitting - 1))
        limits = GenerationLimits(self._most, PREFILL_TOKENS, positions)
        generator = generator_of(self._base, self._pages, limits)
        for one in every:
            generator.add(one)
        return generator

    def _forget(self) -> None:
        self._generator, self._sequences, self._requesters = None, {}, {}
        self._read.clear()

    def _free(self) -> None:
        for slot in self._slots.values():
            if slot is not None:
                self._replicas.first.adapters.drop(slot)
        self._slots = {}
        if self._generator is not None:
            self._generator.release()


def generator_of(base: DeviceBase, pages: int, limits: GenerationLimits) -> Generator:
    """A generator on this base and its arena, with a cache of so many pages of PAGE_TOKENS tokens."""
    trainer = base.trainer
    cache = PagedCache(trainer.backbone, pages, PAGE_TOKENS)
    runner: Runner = FusedRunner(trainer, cache) if isinstance(trainer, DeviceTrainer) else PlainPass(trainer, cache)
    return Generator(runner, PageAllocator(pages, PAGE_TOKENS), limits, base.decode, base.end_tokens)


def generation_shape(trainer: Trainer) -> GenerationShape:
    """By what generation on this base and device is sized."""
    backbone = trainer.backbone
    return GenerationShape(
        layers=len(backbone.layers),
        key_heads=backbone.shape.key_heads,
        head_size=backbone.shape.head_size,
        hidden=backbone.embedding.shape[1],
        widest=max(2 * target.out_features for target in backbone.targets if target.module == "gate_proj"),
        vocabulary=backbone.embedding.shape[0],
        element_bytes=backbone.embedding.element_size(),
        graphs=MAX_GRAPHS if isinstance(trainer, DeviceTrainer) else 0,
        row_block=1 if isinstance(trainer, DeviceTrainer) else whole_rows(1),
    )


def _within(sampling: Sampling, most: int) -> Sampling:
    """The same, for at most so many new tokens, and at least one."""
    return replace(sampling, max_new_tokens=max(1, min(sampling.max_new_tokens, most)))
