"""Runs generation's passes through the fused layers: prompts launched kernel by kernel, decode steps as captured graphs.

Takes a trainer of the fused path for its weights and its arena. Nothing here waits for the device.
"""

from collections import Counter

import numpy as np
import torch
from torch import Tensor

from worker.generate.batch_scheduler import BatchStep
from worker.generate.cuda.cached_stack import CachedBatch, CachedStack
from worker.generate.cuda.decode_batch import DecodeShape, adapter_spans, by_adapter, decode_buffer, unpack_decode
from worker.generate.paged_cache import PagedCache
from worker.generate.plain_pass import prompt_segment
from worker.generate.sequence import Sequence
from worker.model.cuda.batches.device_batch import BatchShape, fill, tables, unpack
from worker.model.cuda.batches.upload_buffer import pinned, upload
from worker.model.cuda.captured_graphs import CapturedGraphs
from worker.model.cuda.device_trainer import DeviceTrainer, spans_of
from worker.model.cuda.fused_pass import FusedPass
from worker.model.cuda.last_layer import LastLayer
from worker.model.flat_batch import FlatBatch
from worker.model.plain.lm_head import softcapped

MAX_GRAPHS = 32
CAPTURE_AFTER = 4  # decode steps of a bucket, the last of which captures it


class FusedRunner:
    """A sequence's `adapter` is a slot of the trainer's arena, or None. The cache's pages hold a power of two of at least 16
    tokens."""

    def __init__(self, trainer: DeviceTrainer, cache: PagedCache, capture_after: int = CAPTURE_AFTER) -> None:
        self._trainer, self._cache, self._capture_after = trainer, cache, capture_after
        self._fused = FusedPass(trainer.backbone, trainer.arena.layout, trainer.backbone.max_positions)
        self._stack = CachedStack(self._fused.stack, cache)
        self._last = LastLayer(self._stack)
        self._captured = CapturedGraphs[DecodeShape, Tensor](trainer.backbone.device, MAX_GRAPHS)
        self._seen = Counter[DecodeShape]()

    @property
    def captured(self) -> tuple[DecodeShape, ...]:
        """The buckets that have a captured graph."""
        return tuple(self._captured)

    def run(self, step: BatchStep) -> Tensor:
        """Logits of each sequence's last token [sequences, V], in the base's dtype, or float32 if the family caps them; valid
        until the next call."""
        order = by_adapter(step.sequences)
        inverse = np.empty(len(order), np.int64)
        inverse[order] = np.arange(len(order))
        sequences = [step.sequences[place] for place in order]
        with torch.no_grad(), self._trainer.on_device():
            logits = self._prefill(sequences) if step.prefill else self._decode(sequences)
            if (inverse[1:] > inverse[:-1]).all():
                return logits
            return logits[torch.from_numpy(inverse).to(logits.device)]

    def _prefill(self, sequences: list[Sequence]) -> Tensor:
        flat = FlatBatch.of([prompt_segment(sequence, sequence.prompt) for sequence in sequences])
        spans, slots = spans_of(flat.segments, flat.ranges)
        self._trainer.arena.refresh(slots)
        table = tables(flat, spans, ())
        shape = BatchShape.of(flat, table)
        batch = unpack(shape, self._up(fill(shape, flat, table)))
        pages, places = np.zeros((2, shape.tokens), np.int64)
        size = self._cache.page_tokens
        for sequence, (start, stop) in zip(sequences, flat.sequences(), strict=True):
            own = np.arange(stop - start)
            pages[start:stop] = np.array(sequence.pages)[own // size]
            places[start:stop] = own % size
        cached = CachedBatch(**vars(batch), pages=self._up(pages), places=self._up(places))
        h = self._hidden(cached)
        return self._logits(h[self._up(flat.label_indices.numpy())])

    def _decode(self, sequences: list[Sequence]) -> Tensor:
        spans, slots = adapter_spans(sequences)
        self._trainer.arena.refresh(slots)
        shape, host = decode_buffer(sequences, spans)
        return self._replay(shape, host)[: len(sequences)]

    def _launch(self, shape: DecodeShape, flat: Tensor) -> Tensor:
        batch = unpack_decode(shape, flat, self._cache.page_tokens)
        h = self._hidden(batch)
        return self._logits(h)

    def _replay(self, shape: DecodeShape, host: np.ndarray) -> Tensor:
        self._captured.belong_to((self._trainer.arena.compute_copy.data_ptr(),))
        if shape not in self._captured:
            self._seen[shape] += 1
            if self._seen[shape] < self._capture_after or self._trainer.backbone.device.type != "cuda":
                return self._launch(shape, self._up(host))
            del self._seen[shape]
            inputs, held = self._up(host), any(known.takes_as_much_as(shape) for known in self._captured)

            def run() -> Tensor:
                return self._launch(shape, inputs)

            # Running twice writes the same keys to the same places.
            self._captured.capture(shape, inputs, run, None if held else run)
        return self._captured.replay(shape, pinned(host, self._trainer.backbone.device))

    def _hidden(self, batch: CachedBatch) -> Tensor:
        """The final hidden states [T, D]."""
        adapters = self._adapters()
        output = self._stack.forward(self._fused.embed(batch), batch, adapters, None)
        return self._last.forward(output, adapters, batch.table)[0]

    def _logits(self, h: Tensor) -> Tensor:
        logits, cap = torch.mm(h, self._fused.head.t()), self._trainer.backbone.logit_cap
        # Not rounded again behind the cap: near it bf16 would make ties of the largest.
        return logits if cap is None else softcapped(logits.float(), cap)

    def _adapters(self) -> Tensor:
        return self._trainer.arena.layered(self._trainer.arena.compute_copy)

    def _up(self, values: np.ndarray) -> Tensor:
        return upload(values, self._trainer.backbone.device)
