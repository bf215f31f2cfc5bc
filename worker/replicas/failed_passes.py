"""Passes over a sharded base that found no memory, kept on the node for a day. Such a pass ends its executor, since the other
ranks are in the midst of it; the executor that comes after it begins with the limits that follow. Runs nothing."""

import hashlib
import json
import logging
from functools import partial
from pathlib import Path

import torch

from contract.messages.placement_messages import BaseModelRef
from worker.data.disk_full import DiskFull
from worker.data.object_cache import ObjectCache
from worker.model.plain.trainer import OutOfMemory
from worker.policy.adapter_memory_model import Capacity, capacity_after_oom

log = logging.getLogger(__name__)


class FailedPasses:
    """Of one base, sharded over so many devices of a kind. scratch: of the node, shared by the ranks of its executors."""

    def __init__(self, scratch: ObjectCache, ref: BaseModelRef, device: torch.device, world: int) -> None:
        kind = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        said = f"failed passes {ref.revision} {ref.precision} {kind} {world}"
        self._scratch, self._key = scratch, hashlib.sha256(said.encode()).hexdigest()

    def remember(self, error: OutOfMemory, rows: int) -> None:
        """This pass, beside `rows` arena rows, found no memory."""
        known = [*self._read(), [error.tokens, rows, error.recompute]]
        try:
            self._scratch.keep(partial(_write, known), name=self._key)
        except DiskFull as full:
            log.warning("the executor after this one will not know of the pass that found no memory: %s", full)

    def lowered(self, capacity: Capacity) -> Capacity:
        """The capacity after all that is remembered."""
        for tokens, rows, recompute in self._read():
            capacity = capacity_after_oom(capacity, tokens, rows, bool(recompute))
        return capacity

    def _read(self) -> list[list[int]]:
        path = self._scratch.find(self._key)
        found: list[list[int]] = json.loads(path.read_text()) if path is not None else []
        return found


def _write(known: list[list[int]], path: Path) -> None:
    path.write_text(json.dumps(known))
