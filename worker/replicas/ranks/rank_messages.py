"""What rank 0 and another rank of its executor say to each other: calls of a replica's interface, and their answers. Values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.policy.activations import Activations
from worker.policy.adapter_memory_model import Capacity
from worker.policy.job_record import JobKey
from worker.policy.step_time import PRIOR, StepLoad, StepModel


@dataclass(frozen=True)
class Call:
    """A call by name. answers: False where nobody waits for its result; an error ends the rank all the same. returned: segments
    of shared memory that rank 0 needs no more. activations: tasks' that changed since the last call."""

    name: str
    args: tuple[Any, ...]
    answers: bool
    returned: list[int] = field(default_factory=list)
    activations: Mapping[str, Activations] = field(default_factory=dict)


@dataclass(frozen=True)
class PassDone:
    """A pass of the call under way is done."""


@dataclass(frozen=True)
class StepsDone:
    """The next steps of the call under way, as of its result, which then leaves them out."""

    steps: list[Any]


@dataclass(frozen=True)
class Pause:
    """Rank 0 would meet before all steps of the call under way are taken. Void once the call is answered."""


@dataclass(frozen=True)
class Paused:
    """The rank waits, having begun so many steps of the call under way."""

    steps: int


@dataclass(frozen=True)
class GoOn:
    """To a rank that waits: it takes so many steps in all."""

    steps: int


@dataclass(frozen=True)
class ReplicaState:
    """What rank 0 looks at between calls. under_way: tasks in the midst of a step. activations: each task's as of now."""

    capacity: Capacity | None = None
    alone_model: StepModel = PRIOR
    under_way: frozenset[str] = frozenset()
    activations: Mapping[str, Activations] = field(default_factory=dict)


@dataclass(frozen=True)
class CallResult:
    """result: of the call, or the error of one that may fail. dropped: segments of shared memory that are no more."""

    result: Any
    state: ReplicaState
    dropped: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class StepOrder:
    """A decision for one rank. jobs: who steps, and the number of the step. slices, count: as of Replica.begin_steps; None: no
    tasks take turns, so the answer need not say what their next slices take. Steps may be fewer than count: see Pause."""

    jobs: list[tuple[JobKey, int]]
    slices: int | None
    count: int


@dataclass(frozen=True)
class SliceForecast:
    """What the next slice of a task takes, if these are its jobs then, and the numbers of their steps."""

    jobs: frozenset[tuple[JobKey, int]]
    load: StepLoad
