"""One job's resume state in one file: tensors as safetensors, all else as JSON in its header. Knows no running jobs.

Holds what a bit-exact resume needs: the adapter with its moments, the weights with the lowest losses, the number of steps
(which also gives the position in the data), the smoothed loss, the windows and counters.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from contract.row_scores import RowScores
from worker.data.safetensors_writer import write_tensors
from worker.model.arena import AdapterState
from worker.model.tensor_file_reader import read_metadata, read_tensors
from worker.policy.early_exit.policy_interface import History
from worker.policy.job_record import AVERAGED, Best, JobProgress

_FORMAT = 2
_KEY = "motet_checkpoint"
# by themselves, since workers of before they were known read every field of the other
_SCORES, _LOWEST = "motet_cut_scores", "motet_lowest"


class CheckpointError(ValueError):
    """The file is not a checkpoint that this worker can read."""


class UnreadableWeights(RuntimeError):
    """A file of one job's weights cannot be read back. The message says why."""


@dataclass(frozen=True)
class Tensors:
    """Host copies. `lowest`: the weights at the lowest validation losses, in the order of these, float32 [rank, W] each; none
    before the first evaluation. lost: why these could not be read; None: they were."""

    adapter: AdapterState
    lowest: tuple[Tensor, ...] = ()
    lost: str | None = None

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.named().values())

    def named(self) -> dict[str, Tensor]:
        parts = {
            "weights": self.adapter.weights,
            "exp_avg": self.adapter.exp_avg,
            "exp_avg_sq": self.adapter.exp_avg_sq,
            **dict(zip(_NAMES, self.lowest, strict=False)),
        }
        return {name: tensor for name, tensor in parts.items() if tensor is not None}


_NAMES = ("best", *(f"lowest_{place}" for place in range(1, AVERAGED)))  # in the file


def save(path: Path, progress: JobProgress, tensors: Tensors) -> None:
    header = asdict(replace(progress, boundary_scores=None))
    del header["boundary_scores"]
    best, *others = header.pop("lowest") or [None]
    metadata = {_KEY: json.dumps({"format": _FORMAT, "best": best, **header})}
    if others:
        metadata[_LOWEST] = json.dumps(others)
    if progress.boundary_scores is not None:
        metadata[_SCORES] = progress.boundary_scores.model_dump_json()
    write_tensors(tensors.named(), path, metadata)


def load_progress(path: Path) -> JobProgress:
    """The state without its tensors, from the file's header. Raises CheckpointError, and UnreadableWeights where the disk does
    not give the file back."""
    try:
        metadata = read_metadata(path)
        said = json.loads(metadata[_KEY])
    except OSError as error:
        raise unreadable(error) from None
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{path.name} is not a checkpoint: {error}") from None
    if said.pop("format", None) != _FORMAT:
        raise CheckpointError(f"{path.name} is a checkpoint of another format; this worker reads format {_FORMAT}")
    history, best, rungs = said.pop("history"), said.pop("best"), said.pop("rung_losses")
    seen = History(**{**history, "train": tuple(history["train"]), "val": tuple(history["val"])})
    scores = RowScores.model_validate_json(metadata[_SCORES]) if _SCORES in metadata else None
    lowest = tuple(Best(**one) for one in ([best] if best else []) + json.loads(metadata.get(_LOWEST, "[]")))
    return JobProgress(**said, history=seen, lowest=lowest, rung_losses=tuple(rungs), boundary_scores=scores)


def load_tensors(path: Path, bare: bool = False) -> Tensors:
    """bare: the weights alone. Raises UnreadableWeights."""
    try:
        found = read_tensors(path, lambda name: not bare or name == "weights")
        adapter = AdapterState(found["weights"], found.get("exp_avg"), found.get("exp_avg_sq"))
    except (OSError, KeyError, ValueError) as error:
        raise unreadable(error) from None
    return Tensors(adapter, tuple(found[name] for name in _NAMES if name in found))


def unreadable(error: Exception) -> UnreadableWeights:
    """Why an adapter's file was not read."""
    return UnreadableWeights(f"the file of its adapter in MOTET_WORKER_DIR cannot be read: {error}")


def mean_of(weights: Sequence[Tensor]) -> Tensor | None:
    """The mean of host copies of one job's weights, A and B by themselves: of one, these. None of none. In the caller's thread
    alone: torch would start threads for it, beside those that train."""
    if len(weights) < 2:
        return weights[0] if weights else None
    total = np.add(weights[0].numpy(), weights[1].numpy())
    for other in weights[2:]:
        total += other.numpy()
    total /= len(weights)
    return torch.from_numpy(total)
