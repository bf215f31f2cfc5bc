"""Loads a base model onto a device: backbone, tokenizer, arena and trainer. Knows no tasks."""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from grouped_lora.base.fp8 import CAPABILITY
from transformers import PreTrainedTokenizerBase

from contract.messages.placement_messages import BaseModelRef
from contract.model_revision import NoWeights, revision_of
from contract.rows.row_encoding import RowReader
from contract.rows.tokenizer import TokenizerError
from contract.task_spec import Precision
from worker.data.row_reader import fingerprint_of, load_tokenizer, reader_of, reads_date
from worker.generate.end_tokens import end_tokens
from worker.generate.text_decoder import Decode
from worker.model.arena import Arena
from worker.model.backbone import Backbone, OnLoaded, ignore_progress
from worker.model.base_weight_reader import weight_bytes
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.families import UnsupportedModelError
from worker.model.out_of_memory import is_out_of_memory
from worker.model.plain.trainer import Trainer
from worker.model.sharding.weight_shards import Sharding
from worker.replicas.sharding_choice import ChosenSharding, compute_dtype

log = logging.getLogger(__name__)

_MOST_SHARE = 0.9  # of the memory: a base above this share that found no room is too large, not crowded out


class BaseError(ValueError):
    """The base cannot be trained on here, and a retry would fail the same way."""


class Crowded(RuntimeError):
    """The base would fit, but something else uses the memory, or all threads or processes that the system starts: another
    node, or a later try, may find room."""


@dataclass(frozen=True)
class DeviceBase:
    """A base on one device: a copy, or where it is sharded one rank's part of it."""

    ref: BaseModelRef
    trainer: Trainer
    reader: RowReader
    checked: Future[None]  # its revision, which is being checked still: raises BaseError where the weights are others
    tokenizer: str = ""  # sha256 of the tokenizer with its template, as `fingerprint_of` takes it
    reads_date: bool = False  # whether the template may write the date
    decode: Decode = str  # tokens as text, without special tokens and end tokens
    token_text: Decode = str  # the same with both, for one token by itself
    end_tokens: frozenset[int] = frozenset()  # each ends a generated text

    @property
    def proved_wrong(self) -> bool:
        """Whether its weights were found to be others."""
        return self.checked.done() and self.checked.exception() is not None

    @property
    def vocabulary(self) -> int:
        """Size of the base's vocabulary, in tokens."""
        return self.trainer.backbone.embedding.shape[0]

    @property
    def max_positions(self) -> int:
        return self.trainer.backbone.max_positions


def load_base(
    ref: BaseModelRef,
    device: torch.device,
    eight_bit: bool = False,
    memory: int | None = None,
    sharding: ChosenSharding | None = None,
    on_progress: OnLoaded = ignore_progress,
) -> DeviceBase:
    """Load the base with its tokenizer, and begin to check the revision, which takes longer: nothing may be trained, or kept by
    its revision, before `checked` is done. Arguments and errors as of load_trainer; a wrong revision is said rather than
    another BaseError or Crowded, so that these come once all was read."""
    source, beside = Path(ref.source), ThreadPoolExecutor(1, "revision")
    with threads_wanted(ref):
        checked = beside.submit(check_revision, ref)
    beside.shutdown(wait=False)
    try:
        trainer = load_trainer(ref, device, eight_bit, memory, sharding, on_progress=on_progress)
        tokenizer = load_tokenizer(source)
        reader, ends = reader_of(tokenizer), end_tokens(source, tokenizer)
    except (BaseError, Crowded):
        raise_wrong(checked)
        raise
    except (TokenizerError, OSError, ValueError) as error:
        raise_wrong(checked)
        raise BaseError(f"base model {ref.name}: {error}") from None
    decode, token_text = partial(_text, tokenizer, ends), partial(_decoded, tokenizer, False)
    return DeviceBase(ref, trainer, reader, checked, fingerprint_of(tokenizer), reads_date(tokenizer), decode, token_text, ends)


@contextmanager
def threads_wanted(ref: BaseModelRef) -> Iterator[None]:
    """Within it, nothing but a thread is started to load the base. Raises Crowded where the system starts no more."""
    try:
        yield
    except RuntimeError as error:
        raise Crowded(f"base model {ref.name}: {error}; something else has all that the system starts") from None


def raise_wrong(checked: Future[None]) -> None:
    """Wait for the check of a revision, and raise what it found as an error of its own: the check's would keep, by its context
    and as long as the future lives, what a load that failed had read."""
    if (wrong := checked.exception()) is None:
        return
    raise (BaseError(str(wrong)) if isinstance(wrong, BaseError) else wrong) from None


def check_revision(ref: BaseModelRef) -> None:
    """Raises BaseError where this host's folder does not hold the weights of the revision."""
    source = Path(ref.source)
    try:
        found = revision_of(source)
    except (NoWeights, OSError) as error:
        raise BaseError(f"base model {ref.name}: {error}") from None
    if found != ref.revision:
        raise BaseError(
            f"base model {ref.name}: the weights in {source} have revision {found}, the task is pinned to {ref.revision}; "
            "bring the folder back, or register the new weights and submit again"
        )


def load_trainer(
    ref: BaseModelRef,
    device: torch.device,
    eight_bit: bool = False,
    memory: int | None = None,
    sharding: ChosenSharding | None = None,
    rank: int = 0,
    on_progress: OnLoaded = ignore_progress,
) -> Trainer:
    """Load the weights, whose revision is checked elsewhere, under an arena. Raises BaseError, or Crowded.

    eight_bit: keep moments in 8 bits. memory: bytes that the base may take at most; a larger one is not loaded. sharding: of
    which this is rank `rank`; None: a whole copy. on_progress: as of Backbone.load.
    """
    source = Path(ref.source)
    if ref.precision == "fp8" and (lacking := _without_fp8(device)) is not None:
        raise BaseError(
            f"base model {ref.name}: precision fp8 takes a GPU of compute capability {CAPABILITY[0]}.{CAPABILITY[1]} or later, "
            f"and {lacking} is none; take precision bf16, or nf4 for less memory"
        )
    try:
        need = sharding.held_bytes if sharding is not None else weight_bytes(source, compute_dtype(device), ref.precision)
        if memory is not None and need > memory:
            raise BaseError(_too_large(ref, need, memory))
        own = sharding.of(rank) if sharding is not None else None
        trainer = _tried(lambda: _trainer(source, ref.precision, device, eight_bit, own, on_progress))
    except BaseError:
        raise
    except (UnsupportedModelError, OSError, ValueError) as error:
        raise BaseError(f"base model {ref.name}: {error}") from None
    if trainer is not None:
        return trainer
    if memory is not None and need > _MOST_SHARE * memory:
        raise BaseError(_too_large(ref, need, memory))
    raise Crowded(
        f"base model {ref.name}: no memory for its weights ({need >> 20} MiB), though this worker may use "
        f"{'more' if memory is None else f'{memory >> 20} MiB'}; something else has it"
    )


def _text(tokenizer: PreTrainedTokenizerBase, ends: frozenset[int], tokens: Sequence[int]) -> str:
    """Without end tokens, which not every tokenizer takes for special ones."""
    return _decoded(tokenizer, True, [token for token in tokens if token not in ends])


def _decoded(tokenizer: PreTrainedTokenizerBase, without_special: bool, tokens: Sequence[int]) -> str:
    return str(tokenizer.decode(list(tokens), skip_special_tokens=without_special, clean_up_tokenization_spaces=False))


def _without_fp8(device: torch.device) -> str | None:
    """The device in words, where its matrix unit does not multiply e4m3."""
    if device.type != "cuda":
        return "a CPU"
    found = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} ({found[0]}.{found[1]})" if found < CAPABILITY else None


def _tried(load: Callable[[], Trainer]) -> Trainer | None:
    """Call `load`, and once more if it found no memory; None where the second call finds none, either."""
    for _ in range(2):
        try:
            return load()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            log.warning("out of memory while loading the base model: %s", str(error).partition("\n")[0])
        gc.collect()  # the previous base may be in a reference cycle
        torch.cuda.empty_cache()
    return None


def _too_large(ref: BaseModelRef, need: int, memory: int) -> str:
    ways = "a smaller base" if ref.precision.startswith("nf4") else "precision nf4, a smaller base"
    return (
        f"base model {ref.name}: its weights alone take {need >> 20} MiB in {ref.precision}, and this worker may use "
        f"{memory >> 20} MiB; take {ways}, a worker with more memory, or more of its devices, which share it (gpus)"
    )


def _trainer(
    source: Path,
    precision: Precision,
    device: torch.device,
    eight_bit: bool,
    sharding: Sharding | None,
    on_progress: OnLoaded,
) -> Trainer:
    """The fused trainer on a GPU, plain PyTorch on a CPU. The arena grows as jobs come."""
    backbone = Backbone.load(source, device, compute_dtype(device), precision, sharding, on_progress)
    if device.type == "cpu":
        return Trainer(backbone, Arena(backbone.targets, 8, device, eight_bit=eight_bit))
    return DeviceTrainer(backbone, DeviceArena(backbone.targets, 8, device, torch.bfloat16, eight_bit))
