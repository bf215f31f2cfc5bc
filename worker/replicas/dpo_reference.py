"""The reference of a task under dpo: log-probabilities of all its sequences under the adapter it starts from, or the base.

They are the same for every job and every beta, so they are computed once and kept in a file named by all that they depend on:
the base and its precision, the kind of device, the start, and the very tokens. Knows no jobs and judges nothing.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from contract.wire import BaseModelRef
from worker.data.dataset import DataSet
from worker.data.object_cache import ObjectCache
from worker.model.arena import Slot
from worker.model.plain.trainer import Trainer
from worker.replicas.validation_pass import Sequences, log_probabilities


@dataclass(frozen=True)
class Reference:
    """log p of each sequence's labels, of the training rows and of the validation rows."""

    train: list[float]
    validation: list[float]


def key_of(base: BaseModelRef, device_type: str, start: str, data: DataSet) -> str:
    """sha256 over everything that the numbers depend on. start: of the warm start's files, or nothing."""
    said = hashlib.sha256(f"{base.revision} {base.precision} {device_type} {start}".encode())
    for example in data.sequences:
        said.update(len(example.tokens).to_bytes(4, "little"))
        said.update(example.tokens.tobytes())
        said.update(example.loss_mask.tobytes())
    return said.hexdigest()


def reference_of(
    trainer: Trainer, slot: Slot | None, data: DataSet, key: str, scratch: ObjectCache, budget: int, tick: Callable[[], None]
) -> Reference:
    """The reference, read from the scratch folder if it was computed here before."""
    rows = {"train": data.train, "validation": data.validation}
    counts = [len(part.sequences) for part in rows.values()]
    kept = scratch.find(key)
    if kept is not None:
        numbers = np.frombuffer(kept.read_bytes())
    else:
        wanted = {name: Sequences(slot, part.sequences, part.lengths) for name, part in rows.items()}
        found = log_probabilities(trainer, wanted, budget, tick)
        numbers = np.array(found["train"] + found["validation"])
        scratch.keep(partial(_write, numbers), name=key)
    return Reference(numbers[: counts[0]].tolist(), numbers[counts[0] :].tolist())


def _write(numbers: np.ndarray, path: Path) -> None:
    path.write_bytes(numbers.tobytes())
