"""How much memory generation takes: the key-value cache that it holds between passes, and what one pass takes while it runs.

Pure: numbers in, numbers out. Training and generation take turns, so beside training only what is held counts, unless a pass of
generation takes more than one of training. Holds on a CPU and a GPU: docs/NUMERICS.md has the measured numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from worker.policy.adapter_memory_model import Capacity
from worker.policy.admission import Demand, peak

PAGE_TOKENS = 64
PREFILL_TOKENS = 4096  # of prompts in one pass, unless one prompt has more
RESERVED_TEXTS = 8  # at once of an evaluation, that jobs which share the device leave room for
FLOOR_TOKENS = 4096  # of the cache of completions: what jobs that share the device leave to who asks
_SMALL = 2**20  # masks, rotary tables, indices
_SAMPLED = 64  # rows whose distributions are sorted at a time
_SORTING = 9 * 8  # bytes of each of their numbers: probabilities, order, sums, nucleus, in 64 bits


@dataclass(frozen=True)
class GenerationShape:
    """What the cache and a pass of a base are sized by. hidden, widest: numbers of a token between layers, and the most within
    one (the MLP's two inputs to its product). element_bytes: of a key, a value, a logit."""

    layers: int
    key_heads: int
    head_size: int
    hidden: int
    widest: int
    vocabulary: int
    element_bytes: int
    graphs: int = 0  # captured decode steps, each of which keeps its logits
    row_block: int = 1  # to a multiple of which a product's rows are padded

    @property
    def page_bytes(self) -> int:
        return 2 * self.layers * self.key_heads * PAGE_TOKENS * self.head_size * self.element_bytes

    def held_bytes(self, pages: int, sequences: int) -> int:
        """Bytes held between passes: a cache of so many pages, and the logits of captured steps of up to so many sequences."""
        return pages * self.page_bytes + self.graphs * sequences * self.vocabulary * self.element_bytes

    def pass_bytes(self, sequences: int, tokens: int) -> int:
        """Bytes of a pass over `tokens` tokens that gives `sequences` sequences a token each, besides: logits in the base's and
        in 32 bits, activations of a layer, and the sampler's sorted distributions. An upper bound."""
        logits = (self._padded(sequences) * self.element_bytes + sequences * 2 * 4) * self.vocabulary
        activations = self._padded(tokens) * (8 * self.hidden + 3 * self.widest) * max(4, self.element_bytes)
        return _SMALL + logits + max(activations, min(sequences, _SAMPLED) * self.vocabulary * _SORTING)

    def _padded(self, rows: int) -> int:
        return -(-rows // self.row_block) * self.row_block

    def pages_within(self, room: int, sequences: int) -> int:
        """Pages of the largest cache that these bytes hold beside the logits of captured steps; may be below 0."""
        return (room - self.held_bytes(0, sequences)) // self.page_bytes


def pages_for(tokens: int) -> int:
    return -(-tokens // PAGE_TOKENS)


def evaluation_bytes(shape: GenerationShape, texts: int, tokens: int) -> int:
    """What an evaluation of so many texts, of up to `tokens` tokens with their prompts, wants reserved: a wave of
    RESERVED_TEXTS. With less room it runs in smaller waves, one text at a time in the end."""
    wave = min(RESERVED_TEXTS, texts)
    return shape.held_bytes(1 + wave * pages_for(tokens), wave)


def room_beside(running: Sequence[Demand], capacity: Capacity, shape: GenerationShape, sequences: int, tokens: int) -> int:
    """Bytes that generation may hold beside these jobs, while passes of either take turns; may be below 0."""
    rows = sum(demand.adapter_rows for demand in running)
    own = capacity.model.predict(0, rows) + shape.pass_bytes(sequences, tokens)
    return capacity.usable_bytes - max(peak(running, capacity), own)
