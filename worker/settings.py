"""A worker's settings, read from environment variables that start with MOTET_. Knows no other source, and no
default secrets."""

import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from contract.values.redis_url import RedisUrl
from contract.wording.field_mistakes import shown
from worker.host_name import host_name

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class SettingsError(RuntimeError):
    """The environment lacks a setting or holds a wrong one. The message can be shown to an operator as it is."""


def _base_url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"must start with http:// or https://, got {shown(url)!r}")
    return url.rstrip("/")


def _scratch() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "motet" / "worker"


def _address(named: str) -> str:
    host, _, port = named.strip().rpartition(":")
    if not host or ":" in host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"must be host:port, where host is a name or an IPv4 address, got {shown(named)!r}")
    return f"{host}:{port}"


def _addresses(named: str) -> str:
    found = [_address(one) for one in named.split(",")]
    if len(set(found)) < len(found):
        raise ValueError(f"names a host twice: {named!r}")
    return ",".join(found)


def _notice(named: str) -> str:
    if named not in ("aws", "gcp") and not named.startswith(("file:///", "http://", "https://")):
        raise ValueError(f"must be aws, gcp, file:///path, or a URL that starts with http:// or https://, got {shown(named)!r}")
    return named


class Settings(BaseSettings):
    """Sizes are bytes, durations seconds. The heartbeat's interval and the lease come from the service."""

    model_config = SettingsConfigDict(
        env_prefix="MOTET_", env_ignore_empty=True, frozen=True, extra="ignore", populate_by_name=True
    )

    api_url: Annotated[str, AfterValidator(_base_url)]
    join_token: SecretStr | None = None  # for the first registration; then the node has its own credential
    redis_url: RedisUrl | None = None  # without it, heartbeats bring changes
    node_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] = Field(default_factory=host_name)
    worker_dir: Path = Field(default_factory=_scratch)  # scratch: fetched files, checkpoints being uploaded, parked jobs
    worker_device: Literal["auto", "cpu", "cuda"] = "auto"
    worker_slots: Count = 1  # CPU slots, each of which stands in for a device
    worker_threads: Count | None = None  # torch threads of a slot; left out, the cores are shared among the slots
    # of an executor, on GPUs of each GPU; left out, the free memory, shared among the slots
    worker_memory_bytes: Count | None = None
    # main memory for parked jobs, which go to disk beyond it; as much again for checkpoints, and on a GPU's host for weights at
    # the lowest losses; a quarter of it for adapters that wait for their export or their texts. Left out, an eighth of an
    # executor's memory on a CPU, a quarter of the free memory on a GPU's host
    worker_park_bytes: Count | None = None
    worker_step_tokens: Count | None = None  # of one micro-batch; left out, 4,096 on a CPU and 16,384 on a GPU
    worker_cache_bytes: Count | None = None  # of files and their tokens kept for later; left out, a tenth of the disk
    worker_base_bytes: Count | None = None  # of bases fetched and kept; left out, half of the disk
    worker_checkpoint_seconds: Seconds = 30
    worker_stop_seconds: Seconds = 30  # after SIGTERM, for a last checkpoint of all jobs
    liveness_file: Path | None = None  # that the daemon touches as it goes on, for a probe that restarts a hung one
    # where it is told that the machine is about to be taken away: aws, gcp, file:///path or a URL
    preemption_notice: Annotated[str, AfterValidator(_notice)] | None = None
    worker_moments: Literal["fp32", "8bit"] = "fp32"  # AdamW's: 8 bits take a quarter of the memory
    worker_completion_share: Annotated[float, Field(ge=0, le=0.5)] = 0.05  # of training's time, for all generation
    # how the devices of a placement hold its base: shards where copies do not fit, copies alone, or shards always
    worker_sharding: Literal["auto", "never", "always"] = "auto"
    # further hosts of this node, each where its agent (python -m worker.hosts) listens: host:port, several with commas between
    worker_hosts: Annotated[str, AfterValidator(_addresses)] | None = None
    worker_hosts_secret: Annotated[SecretStr, Field(min_length=32)] | None = None  # that a node's hosts share
    worker_listen: Annotated[str, AfterValidator(_address)] | None = None  # host:port of this host's agent, if it runs one
    worker_recompute: bool = False  # always recompute activations in backward; else only where keeping does not fit
    # the hub of base models, by huggingface_hub's own variables
    hf_endpoint: Annotated[str, AfterValidator(_base_url)] = Field(
        default="https://huggingface.co", validation_alias="HF_ENDPOINT"
    )
    hf_token: SecretStr | None = Field(default=None, validation_alias="HF_TOKEN")

    @property
    def further_hosts(self) -> tuple[str, ...]:
        """The addresses in `worker_hosts`, in their order."""
        return tuple(self.worker_hosts.split(",")) if self.worker_hosts else ()

    @property
    def scratch(self) -> Path:
        """This node's own subfolder of `worker_dir`."""
        return self.worker_dir / self.node_name

    @classmethod
    def load(cls) -> Self:
        """The settings of this process's environment. Raises SettingsError with one line for each wrong variable."""
        try:
            return cls()
        except ValidationError as error:
            raise SettingsError("; ".join(_sentence(e["loc"], e["type"], e["msg"]) for e in error.errors())) from None


def _sentence(loc: tuple[int | str, ...], kind: str, message: str) -> str:
    variable = str(loc[0]).upper()
    name = variable if variable.startswith("HF_") else f"MOTET_{variable}"
    return f"{name} is not set" if kind == "missing" else f"{name}: {message.removeprefix('Value error, ')}"
