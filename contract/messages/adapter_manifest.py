"""An adapter's files and what it was made from: trained by a job, or uploaded by a tenant. Knows no storage and no tensors."""

from typing import Annotated, Any

from pydantic import Field, field_validator

from contract.compatibility.lenient_documents import ShownConfig, unread_fields
from contract.messages.peft_settings import CONFIG_FILE, WEIGHTS_FILE, PeftSettings
from contract.strict import Message, Sha256
from contract.wording.step_words import listed


class AdapterFile(Message):
    """One file of an adapter's folder. `sha256` is also its key in storage and its ETag."""

    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=128)]
    sha256: Sha256
    bytes: Annotated[int, Field(ge=0)]


class AdapterBase(Message):
    """The base that the adapter is for."""

    base_model: str
    base_revision: str


class Lineage(AdapterBase):
    """What the adapter was trained from."""

    task_id: str
    job_id: str
    dataset_sha256: Sha256
    config: ShownConfig


class PeftFolder(Message):
    """A PEFT folder, whoever made it: adapter_config.json and adapter_model.safetensors, and the base that they are for."""

    files: Annotated[list[AdapterFile], Field(min_length=1, max_length=16)]
    lineage: AdapterBase

    @field_validator("files")
    @classmethod
    def _complete(cls, files: list[AdapterFile]) -> list[AdapterFile]:
        paths = [f.path for f in files]
        if len(set(paths)) != len(paths):
            raise ValueError("two files have the same path")
        missing = {CONFIG_FILE, WEIGHTS_FILE} - set(paths)
        if missing:
            raise ValueError(f"misses {', '.join(sorted(missing))}")
        return files


class AdapterManifest(PeftFolder):
    """The adapter that a job trained, kept at its best validation loss, or the mean of its weights at the lowest ones."""

    step: int  # the optimizer step after which the job's own loss was lowest; 0 is before the first
    averaged_steps: tuple[int, ...] = ()  # those whose weights it is the mean of; none: it has those of `step`
    val_loss: float  # mean nats per completion token over the validation rows
    lineage: Lineage
    peft_rank: int | None = None  # of its files, where it is not the job's: of a base that joins matrices
    arena_rows: tuple[int, int] | None = None  # [first, stop) on its executor, in which it trained; older workers leave it out

    @property
    def taken(self) -> str:
        """Which of the job's weights it has, in words."""
        mean = f"with the mean of the weights after steps {listed(self.averaged_steps)}" if self.averaged_steps else ""
        return mean or f"after step {self.step}"

    @property
    def settings(self) -> PeftSettings:
        """What its adapter_config.json says. Raises ValueError where its lineage's configuration cannot be read."""
        config = self.lineage.config
        if unread := [name for name in PeftSettings.model_fields if name in unread_fields(config)]:
            raise ValueError(f"the {listed(unread)} of its lineage.config cannot be read")
        modules = [str(module) for module in config.target_modules]
        return PeftSettings(rank=config.rank, alpha=config.alpha, rslora=config.rslora, target_modules=modules)


class UploadedManifest(PeftFolder):
    """An adapter that a tenant uploaded. Only the service writes it."""

    settings: PeftSettings

    def stored(self) -> dict[str, Any]:
        """The document with what 0.2 expects of every adapter, so that its processes still hand this one to workers during an
        upgrade, and read its base, rank and modules. From 0.4 on, `model_dump` is enough."""
        shape = self.settings.model_dump(mode="json")
        unknown = {"task_id": "", "job_id": "", "dataset_sha256": "0" * 64, "config": shape}
        document = self.model_dump(mode="json")
        return document | {"step": 0, "val_loss": 0.0, "lineage": document["lineage"] | unknown}
