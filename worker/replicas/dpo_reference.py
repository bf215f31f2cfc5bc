"""A task's reference under dpo: log-probabilities of all its sequences under the adapter it starts from, or the base.

They are the same for every job and every beta, so they are computed once and cached in a file named by all inputs: the base and
its precision, the kind of device, the start, and the tokens. Knows no jobs and decides nothing.
"""

import hashlib
import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from contract.messages.placement_messages import BaseModelRef
from worker.data.dataset import DataSet, TokenRows
from worker.data.disk_full import DiskFull
from worker.data.object_cache import ObjectCache
from worker.model.arena import Slot
from worker.model.plain.trainer import Trainer
from worker.replicas.adapter_sequences import AdapterSequences
from worker.replicas.validation_pass import log_probability_passes

log = logging.getLogger(__name__)
_AT_ONCE = 4096  # sequences


@dataclass(frozen=True)
class Reference:
    """log p of each sequence's labels, of the training rows and of the validation rows."""

    train: list[float]
    validation: list[float]


def key_of(base: BaseModelRef, device_type: str, start: str, data: DataSet) -> str:
    """sha256 over everything that the numbers depend on. start: sha256 of the warm start's files, or empty."""
    said = f"{base.revision} {base.precision} {device_type} {start} {data.train.digest} {data.validation.digest}"
    return hashlib.sha256(said.encode()).hexdigest()


def reference_passes(
    trainer: Trainer,
    slot: Slot | None,
    data: DataSet,
    key: str,
    scratch: ObjectCache,
    budget: int,
    on_progress: Callable[[], None],
) -> Generator[None, None, Reference]:
    """The reference, read from the cache folder if it was computed here before; yields after each pass that it takes."""
    rows = {"train": data.train, "validation": data.validation}
    counts = [len(part.sequences) for part in rows.values()]
    numbers = _found(scratch, key)
    if numbers is None:
        found: list[float] = []
        for part in rows.values():
            found += yield from _computed(trainer, slot, part, budget, on_progress)
        numbers = np.array(found)
        try:
            scratch.keep(partial(_write, numbers), name=key)
        except (DiskFull, FileNotFoundError) as error:
            log.warning("the reference is computed again next time: %s", error)
    return Reference(numbers[: counts[0]].tolist(), numbers[counts[0] :].tolist())


def _found(scratch: ObjectCache, key: str) -> np.ndarray | None:
    try:
        return np.frombuffer((scratch.folder / key).read_bytes())
    except FileNotFoundError:
        return None


def _computed(
    trainer: Trainer, slot: Slot | None, rows: TokenRows, budget: int, on_progress: Callable[[], None]
) -> Generator[None, None, list[float]]:
    """log p of the rows' sequences, _AT_ONCE at a time, which bounds the results that a pass holds."""
    found: list[float] = []
    for first in range(0, len(rows.sequences), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        wanted = {0: AdapterSequences(slot, rows.sequences[some], rows.lengths[some])}
        found += (yield from log_probability_passes(trainer, wanted, budget, on_progress))[0]
    return found


def _write(numbers: np.ndarray, path: Path) -> None:
    path.write_bytes(numbers.tobytes())
