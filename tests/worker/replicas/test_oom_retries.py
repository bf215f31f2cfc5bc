"""A pass without memory is repeated: once with the arena's free rows given back, then in shorter passes, and so it ends."""

import torch

from worker.adapters.capacity_tracker import CapacityTracker
from worker.model.plain.trainer import OutOfMemory
from worker.policy.adapter_memory_model import Capacity, MemoryModel
from worker.replicas.base_loader import load_base
from worker.replicas.device_replica import Replica

FITS = 1000  # tokens


def test_work_that_takes_the_freed_rows_again_still_ends_in_shorter_passes(tiny_base, tmp_path) -> None:
    """As the reference of a DPO task that begins from an adapter does: it holds that in the arena while its passes run."""
    trainer = load_base(tiny_base, torch.device("cpu")).trainer
    replica = Replica(trainer, CapacityTracker(Capacity(MemoryModel(0, 0, 1), 10**9, 4096)), tmp_path)
    weights, tried = torch.zeros(16, trainer.arena.layout.width), list[tuple[int, int]]()

    def work(jobs: list[object]) -> str:
        assert len(tried) < 20, "it would go on for ever"
        slot = replica.adapters.hold(weights, 32.0, (), {})
        tried.append((replica.capacity.piece_tokens, trainer.arena.rows))
        replica.adapters.drop(slot)
        if replica.capacity.piece_tokens > FITS:
            raise OutOfMemory(replica.capacity.piece_tokens)
        return "done"

    assert replica.run_with_oom_retries([], work) == ("done", {})
    tokens = [one for one, _ in tried]
    assert tokens == [4096, 4096, 2048, 1024, 512], "the free rows first, and nobody's pass is shorter for that"
