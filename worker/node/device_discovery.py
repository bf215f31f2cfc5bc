"""The node's devices: NVIDIA GPUs as their driver lists them, or CPU slots. Knows no torch, so that the daemon
starts at once."""

import os
import shutil
import subprocess

from contract.wire import Device
from worker.main_memory import available_memory
from worker.settings import Settings, SettingsError

_QUERY = ["--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"]


def find_devices(settings: Settings) -> list[Device]:
    """The node's devices. Raises SettingsError where CUDA devices are asked for and none is found."""
    if settings.worker_device == "cpu":
        return _slots(settings.worker_slots)
    gpus = _gpus()
    if not gpus and settings.worker_device == "cuda":
        raise SettingsError("MOTET_WORKER_DEVICE is cuda, but nvidia-smi lists no GPU that CUDA_VISIBLE_DEVICES shows")
    return gpus or _slots(settings.worker_slots)


def _slots(count: int) -> list[Device]:
    share = available_memory() // count
    return [Device(index=index, type="cpu", memory_bytes=share) for index in range(count)]


def _gpus() -> list[Device]:
    """The GPUs that a process of this node sees, with the indexes that CUDA gives them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    done = subprocess.run([tool, *_QUERY], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        rows = [row for name in names for row in rows if name and (name == row[0] or row[1].startswith(name))]
    return [
        Device(index=index, type=name, memory_bytes=int(mebibytes) * 2**20)
        for index, (_, _, name, mebibytes) in enumerate(rows)
    ]
