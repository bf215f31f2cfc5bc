"""AdapterManifest: a committed adapter's files and its lineage. Knows no storage and no tensors."""

from typing import Annotated

from pydantic import Field, field_validator

from contract.compatibility.lenient_documents import ShownConfig
from contract.strict import Message, Sha256


class AdapterFile(Message):
    """One file of an adapter's folder. `sha256` is also its key in storage and its ETag."""

    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=128)]
    sha256: Sha256
    bytes: Annotated[int, Field(ge=0)]


class Lineage(Message):
    """What the adapter was trained from."""

    task_id: str
    job_id: str
    base_model: str
    base_revision: str
    dataset_sha256: Sha256
    config: ShownConfig


class AdapterManifest(Message):
    """A PEFT folder: adapter_config.json and adapter_model.safetensors, kept at the job's best validation loss."""

    files: Annotated[list[AdapterFile], Field(min_length=1, max_length=16)]
    step: int  # the optimizer step after which it was saved; 0 is before the first
    val_loss: float  # mean nats per completion token over the validation rows
    lineage: Lineage
    arena_rows: tuple[int, int] | None = None  # [first, stop) on its executor, in which it trained; older workers leave it out

    @field_validator("files")
    @classmethod
    def _complete(cls, files: list[AdapterFile]) -> list[AdapterFile]:
        paths = [f.path for f in files]
        if len(set(paths)) != len(paths):
            raise ValueError("two files have the same path")
        missing = {"adapter_config.json", "adapter_model.safetensors"} - set(paths)
        if missing:
            raise ValueError(f"misses {', '.join(sorted(missing))}")
        return files
