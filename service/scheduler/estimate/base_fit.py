"""On how many GPUs of a node a task may run: as many as it asks for, or as its base needs there. Values only."""

from typing import NamedTuple

from contract.task_spec import MOST_GPUS, TaskSpec, doublings
from service.fleet.base_models.gpu_fit import held_bytes, holds_copy
from service.scheduler.estimate.node_shapes import Shape


class BaseFit(NamedTuple):
    """The bytes of a base's weights, a lower bound, and the GPUs that a task asks for: `gpus`, and, if it says so, at most
    `max_gpus`. A task that has texts generated needs a copy of its base on each GPU (`copies`)."""

    weight_bytes: int
    gpus: int
    max_gpus: int | None = None
    copies: bool = False

    @classmethod
    def of(cls, spec: TaskSpec, weight_bytes: int) -> "BaseFit":
        return cls(weight_bytes, spec.gpus, spec.max_gpus, spec.evaluation is not None)

    def held_bytes(self, shape: Shape, gpus: int) -> int | None:
        """Bytes of the weights on each of `gpus` GPUs of such a node: of a copy, else of a shard; None where neither fits."""
        if gpus > shape.gpus:
            return None
        return held_bytes(self.weight_bytes, shape.memory, gpus, shape.shards and not self.copies)

    def narrowest(self, shape: Shape) -> int | None:
        """The fewest GPUs of such a node that the task is given: `gpus`, doubled until they hold the base. None: it does not
        fit there, or not within `max_gpus`."""
        allowed = doublings(self.gpus, self.max_gpus or MOST_GPUS)
        return next((gpus for gpus in allowed if self.held_bytes(shape, gpus) is not None), None)

    def needed(self, shape: Shape) -> int | None:
        """As `narrowest`, without regard to `max_gpus` and to how many GPUs such a node has; None: no doubling does."""
        return self._replace(max_gpus=None).narrowest(shape._replace(gpus=MOST_GPUS))

    def sharded(self, shape: Shape, gpus: int) -> bool:
        """Whether the base would be sharded over `gpus` GPUs of such a node, at least partly, by its weights alone: how much
        room a pass takes beside them, only the worker knows."""
        if gpus < 2 or not shape.shards or self.copies:
            return False
        return self.held_bytes(shape, gpus) is not None and not holds_copy(self.weight_bytes, shape.memory)
