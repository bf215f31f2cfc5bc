"""The process that compiles: finds what passes launch, and compiles it in as many processes as there are cores and memory for.

Yields to whatever else wants the cores: training loops launch from them meanwhile.
"""

import fcntl
import logging
import os
import sys
import time
from hashlib import sha256
from pathlib import Path

import grouped_lora
import torch
import triton
from grouped_lora.compile_ahead import compile_all, pretend
from pydantic import BaseModel, ConfigDict

from worker.compilation.needed_kernels import PassKind, needed_launches
from worker.main_memory import available_memory
from worker.model.families import UnsupportedModelError
from worker.stderr_logging import log_to_stderr

log = logging.getLogger(__name__)

_MOST_PROCESSES = 16  # a kernel takes up to 5 s, all of a task's some 60: more processes would wait for the longest
_PROCESS_BYTES = 512 << 20
_NICENESS = 10
_SOURCES = Path(grouped_lora.__file__).parent, Path(__file__).parents[1]


class CompileOrder(BaseModel):
    """What to compile. source: the base's folder. capability: of the GPU. eight_bit: the moments are kept so."""

    model_config = ConfigDict(frozen=True)

    source: Path
    capability: tuple[int, int]
    kinds: tuple[PassKind, ...]
    eight_bit: bool

    def stamp(self) -> Path:
        """A file in Triton's cache that is written once all is compiled, named by the order, the base's configuration, our
        sources, all of which are read, and the versions of torch and Triton. Raises OSError."""
        told = sha256(f"{self.model_dump_json()} {torch.__version__} {triton.__version__}".encode())
        own = (path for folder in _SOURCES for path in sorted(folder.rglob("*.py")))
        for path in (self.source / "config.json", *own):
            told.update(path.read_bytes())
        return Path(triton.knobs.cache.dir) / f"motet-{told.hexdigest()}"

    def lock(self) -> Path:
        """Of all orders for this base, most of whose kernels are the same: whoever comes second finds them compiled."""
        told = sha256(f"{self.source} {self.capability}".encode())
        return Path(triton.knobs.cache.dir) / f"motet-{told.hexdigest()}.lock"


def main() -> None:
    log_to_stderr()
    began = time.monotonic()
    order = CompileOrder.model_validate_json(sys.stdin.read())
    os.nice(_NICENESS)
    stamp = order.stamp()
    stamp.parent.mkdir(parents=True, exist_ok=True)
    with order.lock().open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of this host may be compiling the same kernels
        if not stamp.exists():
            count = _compile(order)
            stamp.touch()
            log.info("%d kernels are compiled: %.1f s", count, time.monotonic() - began)


def _compile(order: CompileOrder) -> int:
    """How many kernels it took."""
    pretend(order.capability)
    try:
        launches = needed_launches(order.source, order.kinds, order.eight_bit)
    except UnsupportedModelError as error:
        sys.exit(f"no kernels for this base: {error}")  # loading it says so, too
    room = max(1, available_memory() // _PROCESS_BYTES)
    compile_all(launches, min(_MOST_PROCESSES, len(os.sched_getaffinity(0)), room))
    return len(launches)
