"""A replica in another process, by the calls that its rank gets. The rank answers what a test has it answer."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contract.job_config import JobConfig
from worker.adapters.arena_adapters import Allocated
from worker.adapters.location_types import AdapterSpec
from worker.policy.activations import Activations, Need
from worker.policy.adapter_memory_model import Capacity, MemoryModel
from worker.policy.job_record import JobKey
from worker.policy.step_time import StepLoad
from worker.replicas.dpo_reference import Reference
from worker.replicas.ranks.rank_messages import ReplicaState, SliceForecast
from worker.replicas.ranks.rank_process import RankProcess
from worker.replicas.ranks.remote_replica import RemoteReplica
from worker.replicas.training_job import TrainingJob

CAPACITY, LOAD = Capacity(MemoryModel(0, 0, 1), 10**9, 4096), StepLoad(1, 100, 8, 1)
A, B = JobKey("p", 0), JobKey("p", 1)


class Rank:
    """answers: of calls by name. told: what it was called, and what was posted to it."""

    def __init__(self) -> None:
        self.state, self.taken = ReplicaState(CAPACITY), list[Any]()
        self.answers, self.told = dict[str, Any](), list[tuple[Any, ...]]()
        self.followed = dict[str, Activations | None]()

    def call(self, name: str, *args: object) -> Any:
        return self.begin(name, *args)()

    def begin(self, name: str, *args: object, on_progress: object = None) -> Callable[[], Any]:
        self.told.append((name, *args))
        return lambda: self.answers.get(name)

    def post(self, name: str, *args: object) -> None:
        self.told.append((name, *args))

    def follow(self, placement: str, activations: Activations | None) -> None:
        self.followed[placement] = activations

    def note_freed_rows(self) -> None: ...

    def trim_memory(self) -> None: ...


@pytest.fixture
def rank() -> Rank:
    return Rank()


@pytest.fixture
def replica(rank: Rank) -> RemoteReplica:
    made = RemoteReplica(cast(RankProcess, rank), CAPACITY, cast(Any, None))
    rank.told.clear()
    return made


def job(key: JobKey, reference: Reference | None = None) -> TrainingJob:
    data = SimpleNamespace(train=range(8))
    config = JobConfig(learning_rate=1e-3, rank=8, alpha=16, batch_size=1, seed=0)
    return TrainingJob(key, config, cast(Any, data), 20, 1.0, reference=reference)


def forecast(*jobs: tuple[JobKey, int]) -> dict[str, SliceForecast]:
    return {jobs[0][0].placement: SliceForecast(frozenset(jobs), LOAD)}


def test_an_adapter_is_held_from_its_allocation_until_it_is_evicted_for_another(rank: Rank, replica: RemoteReplica) -> None:
    rank.answers["allocate"] = Allocated()
    spec = AdapterSpec(8, 16.0, 0, ["q_proj"])
    replica.adapters.allocate(A, spec, None, 1, [])
    assert (replica.adapters.held, replica.empty) == ({A}, False)
    rank.answers["allocate"] = Allocated(lacking="no memory", evicted=cast(Any, {A: None}))
    replica.adapters.allocate(B, spec, None, 1, [A])
    assert (replica.adapters.held, replica.empty) == (set(), True)


def test_a_forecast_is_asked_for_where_the_jobs_or_their_steps_are_others(rank: Rank, replica: RemoteReplica) -> None:
    rank.answers["forecasts"] = forecast((A, 3))
    assert replica.next_slice_costs([(job(A), 3)]) == {"p": LOAD}
    assert replica.next_slice_costs([(job(A), 3)]) == {"p": LOAD}
    assert rank.told == [("forecasts", [(A, 3)])], "asked once"
    replica.next_slice_costs([(job(A), 4)])
    replica.next_slice_costs([(job(A), 4), (job(B), 4)])
    assert [said[1] for said in rank.told[1:]] == [[(A, 4)], [(A, 4), (B, 4)]]


@pytest.mark.parametrize("why", ["left", "capacity"])
def test_a_forecast_is_void_once_the_task_left_or_batches_may_be_cut_otherwise(
    rank: Rank, replica: RemoteReplica, why: str
) -> None:
    rank.answers["steps"] = ([], {}, forecast((A, 1)))
    replica.begin_steps([(job(A), 0)], 1, 1, lambda: None)()
    replica.next_slice_costs([(job(A), 1)])
    assert "forecasts" not in [said[0] for said in rank.told], "the step's answer told it"
    if why == "left":
        replica.remove_placement("p")
    else:
        rank.answers["steps"] = ([], {}, {})
        pending = replica.begin_steps([(job(JobKey("other", 0)), 0)], 1, 1, lambda: None)
        rank.state = ReplicaState(Capacity(MemoryModel(0, 0, 1), 10**9, 2048))
        pending()
    rank.answers["forecasts"] = forecast((A, 1))
    replica.next_slice_costs([(job(A), 1)])
    assert rank.told[-1] == ("forecasts", [(A, 1)])


def test_a_reference_is_handed_over_once_for_as_long_as_its_task_is_there(rank: Rank, replica: RemoteReplica) -> None:
    known = job(A, Reference([1.0], [2.0]))
    rank.answers["steps"] = ([], {}, {})
    replica.add_placement("p", Need(CAPACITY, 64, (8,), known.activations))
    for _ in range(2):
        replica.begin_steps([(known, 0)], None, 1, lambda: None)()
    assert [said for said in rank.told if said[0] == "refer"] == [("refer", "p", known.reference)]
    assert rank.followed == {"p": known.activations}
    replica.remove_placement("p")
    assert rank.followed == {"p": None}
    replica.begin_steps([(known, 0)], None, 1, lambda: None)()
    assert len([said for said in rank.told if said[0] == "refer"]) == 2, "the task has come back"
