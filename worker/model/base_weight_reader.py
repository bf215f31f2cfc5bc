"""The frozen tensors of a base, by transformers' names: which ones must exist, and a lazy reader of each.

Reads the files themselves rather than through transformers' models, whose import takes longer than that of torch and which
load all weights into host memory first: here a part of one matrix at a time passes through it. By system calls, so that a page
that the disk does not give, or a file that is cut while it is read, is an error of this base; mapped, it ended the process.
"""

import json
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from contract.job_config import MODULES
from contract.task_spec import Precision
from worker.model.arena_layout import aligned
from worker.model.config_reader import read_config
from worker.model.families import Family, UnsupportedModelError, family_of, head_size
from worker.model.tensor_file_reader import DTYPES, TensorFile

log = logging.getLogger(__name__)

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
PATHS = {module: f"self_attn.{module}" for module in ("q_proj", "k_proj", "v_proj", "o_proj")} | {
    module: f"mlp.{module}" for module in ("gate_proj", "up_proj", "down_proj")
}
EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_DERIVED = ".rotary_emb.inv_freq"  # in older folders; the configuration determines it
_DTYPES = ("F64", "F32", "F16", "BF16")
# Of a number: its code, and its part of a block's scale (fp8's scales are per row).
_CODED_BYTES = {"nf4": 0.5 + 4 / 64, "nf4_double": 0.5 + 1 / 64, "fp8": 1.0}
_LAYERS, _LAYER_PLACE = "model.layers.", 2  # of a layer's number in a tensor's name, `model.layers.0.…`
_READ_BYTES = 2**24  # that host memory holds of a tensor on its way to a device or another dtype; less makes many short loops
_PARTS_UPLOADED = 2  # at once: while one is copied to the GPU the next is read
_HEAD_BYTES = 2**26  # logits of a chunk of labels, and what else a pass takes once
_COMPARED = 4096  # rows at a time
_SAID = 8  # names of tensors that an error lists


@dataclass(frozen=True)
class UnreadTensor:
    """A tensor that is not read yet. read: its rows of a slice, of which alone bytes are touched."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[slice], Tensor]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Weights:
    """Reads the tensors that `shapes_of` names. `dtype`: of the tensors returned; None: as stored."""

    def __init__(
        self,
        held: Mapping[str, UnreadTensor],
        wanted: Mapping[str, tuple[int, ...]],
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        places: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """places: the file that each tensor should be in. Raises UnsupportedModelError if a wanted tensor is missing, or has
        another shape, and if the head of a base whose head is its embedding has other numbers."""
        self._held, self._wanted, self.device, self._dtype = held, wanted, torch.device(device), dtype
        self._uploads = deque[torch.cuda.Event]()
        lacking = [
            f"{name} {list(shape)}" + (f" of {places[name]}" if name in places else "")
            for name, shape in wanted.items()
            if name not in held or held[name].shape != shape
        ]
        if lacking:
            more = f" and {len(lacking) - _SAID} more" if len(lacking) > _SAID else ""
            raise UnsupportedModelError(f"the weights lack, or have in another shape: {', '.join(lacking[:_SAID])}{more}")
        strange = [name for name in held if name not in wanted and name != HEAD and not name.endswith(_DERIVED)]
        if strange:
            log.warning("%d tensors are not of this family and change nothing: %s", len(strange), ", ".join(strange[:_SAID]))
        if HEAD in held and HEAD not in wanted and _differ(held[HEAD], held[EMBEDDING]):
            # transformers uses such a head, vLLM the embedding: an adapter fits one of them
            raise UnsupportedModelError(
                f"the weights hold a {HEAD} that differs from {EMBEDDING}, and config.json says that both are one; "
                f"set its tie_word_embeddings to false, or take {HEAD} out"
            )

    def __getitem__(self, name: str) -> Tensor:
        return self.rows(name, 0, self.shape(name)[0])

    def rows(self, name: str, first: int, stop: int) -> Tensor:
        """Rows [first, stop) of a tensor. No other row is read."""
        unread, dtype = self._held[name], self.dtype(name)
        if self.device.type == "cpu" and unread.dtype == dtype:
            return unread.read(slice(first, stop))
        found = torch.empty((stop - first, *unread.shape[1:]), dtype=dtype, device=self.device)
        step = max(1, _READ_BYTES * unread.shape[0] // max(1, unread.nbytes))
        for begin in range(first, stop, step):
            end = min(begin + step, stop)
            found[begin - first : end - first].copy_(unread.read(slice(begin, end)), non_blocking=True)
            self._bound_uploads()
        return found

    def _bound_uploads(self) -> None:
        """A GPU copies a part from pinned memory while the next is read, and that memory is free once it has."""
        if self.device.type != "cuda":
            return
        if len(self._uploads) == _PARTS_UPLOADED:
            self._uploads.popleft().synchronize()
        self._uploads.append(torch.cuda.current_stream(self.device).record_event())

    def shape(self, name: str) -> tuple[int, ...]:
        return self._held[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """Of the tensor that is returned."""
        return self._dtype or self._held[name].dtype

    def stored_bytes(self) -> tuple[int, dict[int, int]]:
        """Bytes of all wanted tensors as they are stored, and of those of each layer."""
        layers = Counter[int]()
        for name in self._wanted:
            if (layer := _layer_of(name)) is not None:
                layers[layer] += self._held[name].nbytes
        return sum(self._held[name].nbytes for name in self._wanted), layers

    def below(self, prefix: str, suffix: str, modules: Iterable[str]) -> list[Tensor]:
        """A layer's tensors for these modules."""
        return [self[f"{prefix}.{PATHS[module]}.{suffix}"] for module in modules]


def shapes_of(family: Family, config: PreTrainedConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a base of this configuration has."""
    hidden = config.hidden_size
    found: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden), NORM: (hidden,)}
    if not config.tie_word_embeddings:
        found[HEAD] = found[EMBEDDING]
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        for module, (rows, columns) in matrices_of(config).items():
            found[f"{prefix}.{PATHS[module]}.weight"] = rows, columns
            if module in family.biased(config):
                found[f"{prefix}.{PATHS[module]}.bias"] = (rows,)
        found |= {f"{prefix}.{path}.weight": (hidden,) for path in family.norms.values()}
        sizes = family.head_norm_sizes(config)
        found |= {f"{prefix}.{path}.weight": (sizes[name],) for name, path in family.head_norms.items()}
    return found


def weight_bytes(source: Path, dtype: torch.dtype, precision: Precision) -> int:
    """Bytes that a model folder's weights take on a device, from its configuration alone. Raises UnsupportedModelError."""
    layers, ends, rest = part_bytes(source, dtype, precision)
    return sum(layers) + sum(ends) + rest


def part_bytes(source: Path, dtype: torch.dtype, precision: Precision) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """The same by parts: each layer's linear maps; embedding and head, where they are two matrices; all else."""
    config = read_config(source)
    shapes = shapes_of(family_of(config), config)
    coded = _CODED_BYTES.get(precision, dtype.itemsize)
    layers, rest = [0.0] * config.num_hidden_layers, dict[str, int]()
    for name, shape in shapes.items():
        if len(shape) == 1 or name in (EMBEDDING, HEAD):
            rest[name] = math.prod(shape) * dtype.itemsize
        else:
            scales = 4 * shape[0] if precision == "fp8" else 0
            layer = _layer_of(name)
            assert layer is not None, "all matrices but embedding and head are of layers"
            layers[layer] += math.prod(shape) * coded + scales
    ends = (rest.pop(EMBEDDING), rest.pop(HEAD)) if HEAD in rest else ()
    return tuple(map(round, layers)), ends, sum(rest.values())


def pass_bytes(source: Path, dtype: torch.dtype, precision: Precision, tokens: int) -> int:
    """Bytes that a pass of `tokens` tokens takes about, with activations recomputed: each layer's input, what one layer keeps
    and its gradients, and a matrix decoded. An estimate from the shapes, for before a base is loaded; then it is measured."""
    config = read_config(source)
    matrices = matrices_of(config)
    features = sum(rows + columns for rows, columns in matrices.values())
    decoded = max(rows * columns for rows, columns in matrices.values()) * 2 if precision in _CODED_BYTES else 0
    return dtype.itemsize * (tokens * (config.num_hidden_layers * config.hidden_size + 2 * features) + decoded) + _HEAD_BYTES


def adapter_columns(source: Path) -> int:
    """Columns of a row of the arena."""
    config = read_config(source)
    return config.num_hidden_layers * sum(map(aligned, chain.from_iterable(matrices_of(config).values())))


def matrices_of(config: PreTrainedConfig) -> dict[str, tuple[int, int]]:
    """(out, in) of a layer's matrices, in the order that a row of the arena holds them."""
    hidden, inner, size = config.hidden_size, config.intermediate_size, head_size(config)
    queries, keys = config.num_attention_heads * size, config.num_key_value_heads * size
    shapes = {"q_proj": (queries, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden), "o_proj": (hidden, queries)}
    shapes |= {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    return {module: shapes[module] for module in MODULES}


def at_hand(tensors: Mapping[str, Tensor]) -> dict[str, UnreadTensor]:
    """Tensors that are in memory, or made as they are looked up: of `items` only shapes and dtypes are read."""

    def rows(name: str, some: slice) -> Tensor:
        return tensors[name][some]

    return {name: UnreadTensor(tuple(one.shape), one.dtype, partial(rows, name)) for name, one in tensors.items()}


def in_folder(source: Path, pinned: bool = False) -> dict[str, UnreadTensor]:
    """The tensors of a model folder, whole or in shards. pinned: what is read of them is to go to a GPU. Raises
    UnsupportedModelError for what cannot be read."""
    return {name: unread for file in _files(source) for name, unread in _held(file, pinned)}


def places_in(source: Path) -> dict[str, str]:
    """The file that the folder's index says each tensor is in; nothing without an index. Raises UnsupportedModelError."""
    index = source / INDEX
    if not index.is_file():
        return {}
    try:
        return {name: Path(file).name for name, file in json.loads(index.read_text())["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedModelError(f"{INDEX} is no index of safetensors files: {error!r}") from None


def _differ(one: UnreadTensor, other: UnreadTensor) -> bool:
    if one.shape != other.shape:
        return True
    parts = (slice(first, first + _COMPARED) for first in range(0, one.shape[0], _COMPARED))
    return any(bool((one.read(part) != other.read(part)).any()) for part in parts)


def _held(file: Path, pinned: bool) -> Iterator[tuple[str, UnreadTensor]]:
    with _readable(file):
        opened = TensorFile(file)
    for name, one in opened.tensors.items():
        if one.dtype not in _DTYPES:
            raise UnsupportedModelError(
                f"{file.name} holds {name} as {one.dtype}; what works: {', '.join(_DTYPES)}, the original weights"
            )
    with _readable(file):
        opened.check()
    for name, one in opened.tensors.items():
        yield name, UnreadTensor(one.shape, DTYPES[one.dtype], partial(_read, file, opened, name, pinned))


def _read(file: Path, opened: TensorFile, name: str, pinned: bool, rows: slice) -> Tensor:
    with _readable(file):
        return opened.read(name, rows, pinned)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Names the file in what it raises."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise UnsupportedModelError(f"{file.name} cannot be read: {error}; bring the folder anew") from None


def _files(source: Path) -> list[Path]:
    """The files that transformers would read: those that the index names, else the one whole file."""
    if not (source / INDEX).is_file():
        if not (source / WHOLE).is_file():
            raise UnsupportedModelError(
                f"{source} is no model folder: it holds neither {WHOLE} nor {INDEX}; no weights but safetensors are read"
            )
        return [source / WHOLE]
    files = [source / name for name in sorted(set(places_in(source).values()))]
    gone = [file.name for file in files if not file.is_file()]
    if gone:
        raise UnsupportedModelError(f"{INDEX} names files that are not there: {', '.join(gone[:_SAID])}")
    return files


def _layer_of(name: str) -> int | None:
    """The layer that a tensor is of; None: of none."""
    return int(name.split(".")[_LAYER_PLACE]) if name.startswith(_LAYERS) else None
