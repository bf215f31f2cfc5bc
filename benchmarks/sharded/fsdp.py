"""FSDP2: `fully_shard` of each decoder layer that its plan names; all other parameters are whole on every rank.

The next sharded layer is prefetched in both directions, and the last one stays gathered between forward and backward. Adapters
are no parameters of the model: FSDP neither gathers nor reduces them. Each also runs with FSDP's buffers allocated by NCCL,
which FSDP2 offers and leaves off.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.sharded.adapter_bank import AdapterBank
from benchmarks.sharded.contestant import Contestant, Given
from benchmarks.sharded.plain_decoder import PlainLayer, PlainModel
from benchmarks.sharded.reference import AdapterOutcome
from benchmarks.sharded.workload import ADAPTERS, Workload


class Rival(Contestant):
    """A model and adapters in PyTorch. A subclass sets `net` and `bank`, and chooses the rows in `prepare`."""

    net: PlainModel
    bank: AdapterBank

    def load_rows(self, work: Workload, rows: np.ndarray, weights: np.ndarray) -> None:
        """rows [R, tokens + 1]; weights [R]: of each of a row's labels in the loss."""
        device = self.given.rank.device
        tokens = torch.from_numpy(rows.astype(np.int64)).to(device)
        self._tokens, self._targets = tokens[:, :-1].contiguous(), tokens[:, -work.labels :].contiguous()
        each = np.repeat(weights.astype(np.float32)[:, None], work.labels, 1)
        self._weights = torch.from_numpy(each).to(device)
        self.net.attach(self.bank, work.tokens)

    def run_pass(self, rows: slice = slice(None)) -> torch.Tensor:
        """Forward and backward; the weighted losses [R, L] of these rows."""
        total, nll = self.net(self._tokens, self._targets, self._weights, rows)
        total.backward()
        self.bank.reduce()
        return nll * self._weights[rows]


class FsdpModel(PlainModel):
    """nccl_memory: NCCL allocates what it gathers into (`set_allocate_memory_from_process_group_for_comm`)."""

    def __init__(self, given: Given, nccl_memory: bool) -> None:
        plan, world = given.plan, given.rank.world
        mesh = init_device_mesh(given.rank.device.type, (world,))
        self.sharded: list[int] = list(plan.layers) if plan is not None else []

        def shard(index: int, layer: PlainLayer) -> None:
            if index in self.sharded:
                fully_shard(layer, mesh=mesh, reshard_after_forward=index != self.sharded[-1])

        super().__init__(given.model, given.recompute, shard)
        if plan is None:
            return
        resident = [layer for index, layer in enumerate(self.layers) if index not in self.sharded]
        whole = {self.norm, *(parameter for layer in resident for parameter in layer.parameters())}
        if not plan.ends:
            whole |= {self.embedding, self.head}
        fully_shard(self, mesh=mesh, ignored_params=whole)
        layers = [self.layers[index] for index in self.sharded]
        for layer, following in pairwise(layers):
            layer.set_modules_to_forward_prefetch([following])  # type: ignore[operator]
            following.set_modules_to_backward_prefetch([layer])  # type: ignore[operator]
        self.set_modules_to_forward_prefetch(layers[:1])  # type: ignore[operator]
        if nccl_memory:
            dist.all_reduce(torch.zeros(1, device=given.rank.device))  # lends memory once its communicator is there
        for module in (self, *layers) if nccl_memory else ():
            module.set_allocate_memory_from_process_group_for_comm(True)  # type: ignore[operator]


class FsdpDataParallel(Rival):
    """One adapter at a time, its rows spread over ranks and its gradients summed, as users run it."""

    note = "one adapter's step, timed, times 8; a batch is padded to a multiple of the ranks; holds one adapter's state"
    parts_of_step = ADAPTERS

    def __init__(self, given: Given, nccl_memory: bool = False) -> None:
        super().__init__(given)
        self.net = FsdpModel(given, nccl_memory)
        self.bank = AdapterBank(given.model.shape, 1, given.rank.device, given.model.dtype, "everything")
        self.bank.load(0, 0)

    def prepare(self, work: Workload, adapter: int = 0) -> None:
        rank, rows = self.given.rank, work.rows(adapter)
        share = -(-work.batch // rank.world)
        padding = np.zeros((share * rank.world - work.batch, work.tokens + 1), rows.dtype)
        weights = np.concatenate([np.full(work.batch, 1 / (work.batch * work.labels)), np.zeros(len(padding))])
        own = slice(rank.number * share, (rank.number + 1) * share)
        self.load_rows(work, np.concatenate([rows, padding])[own], weights[own])

    def step(self) -> list[float]:
        loss = self._loss()
        self.bank.update()
        return [loss.item()]

    def _loss(self) -> torch.Tensor:
        loss = self.run_pass().sum()
        dist.all_reduce(loss)
        return loss

    def outcomes_of(self, work: Workload) -> Mapping[int, AdapterOutcome]:
        found = {}
        for adapter in range(ADAPTERS):
            self.bank.load(0, adapter)
            self.prepare(work, adapter)
            loss = self._loss().item()
            found[adapter] = AdapterOutcome(loss, self.bank.gradients(0))
            self.bank.discard_gradients()
        return found


class FsdpPacked(Rival):
    """Each rank its own adapters in one batch: adapter parallelism, with FSDP2's gathers and batched products."""

    note = "adapters spread over ranks, all of a rank's in one pass"

    def __init__(self, given: Given, nccl_memory: bool = False) -> None:
        super().__init__(given)
        self.net = FsdpModel(given, nccl_memory)
        adapters = given.rank.own_adapters
        self.bank = AdapterBank(given.model.shape, len(adapters), given.rank.device, given.model.dtype, "nothing")
        for place, adapter in enumerate(adapters):
            self.bank.load(place, adapter)

    def prepare(self, work: Workload) -> None:
        self.load_rows(work, *packed_rows(work, self.given.rank.own_adapters))

    def step(self) -> list[float]:
        losses = self.run_pass()
        self.bank.update()
        return by_adapter(losses, len(self.given.rank.own_adapters))

    def outcomes_of(self, work: Workload) -> Mapping[int, AdapterOutcome]:
        self.prepare(work)
        losses, own = self.run_pass(), self.given.rank.own_adapters
        found = {
            adapter: AdapterOutcome(loss, self.bank.gradients(place))
            for place, (adapter, loss) in enumerate(zip(own, by_adapter(losses, len(own)), strict=True))
        }
        self.bank.discard_gradients()
        return found


def packed_rows(work: Workload, adapters: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of these adapters, one behind the other, and each row's weight."""
    rows = np.concatenate([work.rows(adapter) for adapter in adapters])
    return rows, np.full(len(rows), 1 / (work.batch * work.labels))


def by_adapter(losses: torch.Tensor, adapters: int) -> list[float]:
    """Each adapter's loss, from weighted losses of its rows."""
    found: list[float] = losses.reshape(adapters, -1).sum(1).tolist()
    return found
