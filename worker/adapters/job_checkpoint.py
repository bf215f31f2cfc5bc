"""One job's resume state in one file: tensors as safetensors, all else as JSON in its header. Knows no running jobs.

Holds what a bit-exact resume needs: the adapter with its moments, the best weights, the number of steps (which also gives the
position in the data), the smoothed loss, the windows and counters.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from contract.row_scores import RowScores
from worker.data.safetensors_writer import write_tensors
from worker.model.arena import AdapterState
from worker.policy.early_exit.policy_interface import History
from worker.policy.job_record import Best, JobProgress

_FORMAT = 2
_KEY = "motet_checkpoint"
_SCORES = "motet_cut_scores"  # by itself, since workers of before it was known read every field of the other


class CheckpointError(ValueError):
    """The file is not a checkpoint that this worker can read."""


@dataclass(frozen=True)
class Tensors:
    """Host copies. `best`: the weights at the best validation loss, float32 [rank, W]; None before the first evaluation."""

    adapter: AdapterState
    best: Tensor | None

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.named().values())

    def named(self) -> dict[str, Tensor]:
        parts = {
            "weights": self.adapter.weights,
            "exp_avg": self.adapter.exp_avg,
            "exp_avg_sq": self.adapter.exp_avg_sq,
            "best": self.best,
        }
        return {name: tensor for name, tensor in parts.items() if tensor is not None}


def save(path: Path, progress: JobProgress, tensors: Tensors) -> None:
    header = asdict(replace(progress, boundary_scores=None))
    del header["boundary_scores"]
    metadata = {_KEY: json.dumps({"format": _FORMAT, **header})}
    if progress.boundary_scores is not None:
        metadata[_SCORES] = progress.boundary_scores.model_dump_json()
    write_tensors(tensors.named(), path, metadata)


def load_progress(path: Path) -> JobProgress:
    """The state without its tensors, from the file's header. Raises CheckpointError."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            said = json.loads(metadata[_KEY])
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path.name} is not a checkpoint: {error}") from None
    if said.pop("format", None) != _FORMAT:
        raise CheckpointError(f"{path.name} is a checkpoint of another format; this worker reads format {_FORMAT}")
    history, best, rungs = said.pop("history"), said.pop("best"), said.pop("rung_losses")
    seen = History(**{**history, "train": tuple(history["train"]), "val": tuple(history["val"])})
    scores = RowScores.model_validate_json(metadata[_SCORES]) if _SCORES in metadata else None
    return JobProgress(
        **said, history=seen, best=Best(**best) if best else None, rung_losses=tuple(rungs), boundary_scores=scores
    )


def load_tensors(path: Path) -> Tensors:
    with safe_open(path, framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (a file, not a dictionary)
    adapter = AdapterState(found["weights"], found.get("exp_avg"), found.get("exp_avg_sq"))
    return Tensors(adapter, found.get("best"))
