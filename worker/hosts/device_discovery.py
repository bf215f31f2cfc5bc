"""The node's devices: NVIDIA GPUs as their driver lists them, or CPU slots. Knows no torch, so that the daemon
starts at once."""

import os
import shutil
import subprocess
from collections.abc import Sequence

from contract.messages.node_messages import Device
from worker.main_memory import available_memory
from worker.settings import Settings, SettingsError

_FORMAT = "--format=csv,noheader,nounits"
_FP8 = frozenset({"precision=fp8"})
FP8_CAPABILITY = (8, 9)  # as grouped_lora.base.fp8, which imports torch


def find_devices(settings: Settings) -> list[Device]:
    """The node's devices, each with no more memory than executors may take of it. Raises SettingsError where CUDA devices are
    asked for and none is found."""
    gpus = _gpus() if settings.worker_device != "cpu" else []
    if not gpus and settings.worker_device == "cuda":
        raise SettingsError("MOTET_WORKER_DEVICE is cuda, but nvidia-smi lists no GPU that CUDA_VISIBLE_DEVICES shows")
    found, most = gpus or _slots(settings.worker_slots), settings.worker_memory_bytes
    if most is None:
        return found
    return [device.model_copy(update={"memory_bytes": min(device.memory_bytes, most)}) for device in found]


def beyond_hardware(devices: Sequence[Device]) -> frozenset[str]:
    """The capabilities (contract.compatibility.capabilities) of this version's workers that these devices lack."""
    if any(device.type == "cpu" for device in devices):
        return _FP8
    found = [_capability(row[0]) for row in _listed(["compute_cap"])]
    return _FP8 if not found or min(found) < FP8_CAPABILITY else frozenset()


def _capability(printed: str) -> tuple[int, ...]:
    """A compute capability as the driver prints it; () for one that it does not know."""
    parts = printed.split(".")
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()


def _slots(count: int) -> list[Device]:
    share = available_memory() // count
    return [Device(index=index, type="cpu", memory_bytes=share) for index in range(count)]


def _gpus() -> list[Device]:
    """The GPUs that a process of this node sees, with the indexes that CUDA gives them."""
    rows = _listed(["name", "memory.total"])
    return [Device(index=index, type=name, memory_bytes=int(mebibytes) * 2**20) for index, (name, mebibytes) in enumerate(rows)]


def _listed(fields: list[str]) -> list[list[str]]:
    """These fields of every GPU that a process of this node sees, as the driver prints them, in CUDA's order."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = f"--query-gpu={','.join(['index', 'uuid', *fields])}"
    done = subprocess.run([tool, query, _FORMAT], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        rows = [row for name in names for row in rows if name and (name == row[0] or row[1].startswith(name))]
    return [row[2:] for row in rows]
