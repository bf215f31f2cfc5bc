"""The daemon with its real children, against a fleet API over real HTTP: who dies, who notices, what is given back."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress

import pytest
import redis

from contract.messages.placement_messages import Placement
from contract.messages.report_messages import Checkpointed, Detached, JobCompleted
from contract.states import RequeueReason
from tests.worker.fleet import Fleet
from tests.worker.inside import resumed
from tests.worker.processes import environment, gone
from tests.worker.running_node import LONG, PATIENCE, SHORT, SPACE, Placing, fleet_with_placements, refused, running, trains


class TestOneNode:
    """One daemon through many mishaps. Each test leaves it ready for the next."""

    @pytest.fixture
    def fleet(self, placed: tuple[Fleet, Placing]) -> Iterator[Fleet]:
        fleet = placed[0]
        fleet.lost.clear()
        yield fleet
        for placement in fleet.desired:
            fleet.end(placement.placement_id)

    @pytest.fixture
    def placing(self, placed: tuple[Fleet, Placing]) -> Placing:
        return placed[1]

    def test_a_task_runs_and_its_executor_serves_the_next(self, fleet, placing, node):
        first = fleet.place(placing(SPACE, **SHORT))
        fleet.until(lambda: first.ended)
        executor = node.child("worker.executor")
        second = fleet.place(placing(SPACE, **SHORT))
        fleet.until(lambda: second.ended)
        assert node.child("worker.executor") == executor
        assert second.curves == first.curves
        registration = fleet.registrations[0]
        assert registration.name == "node"
        assert [device.type for device in registration.devices] == ["cpu"]
        around = environment(executor)
        assert registration.versions["MKL_CBWR"] == around["MKL_CBWR"] == "AUTO,STRICT"
        assert "pinned_use_cuda_host_register:True" in around["PYTORCH_ALLOC_CONF"]
        assert around["TRITON_CACHE_DIR"] == f"{around['MOTET_WORKER_DIR']}/node/kernels"
        assert fleet.lost == []

    def test_a_killed_heartbeat_is_started_again(self, fleet, placing, node):
        reported = fleet.place(placing(SPACE, **LONG))
        fleet.until(trains(reported))
        heart = node.child("worker.node.heartbeat")
        os.kill(heart, signal.SIGKILL)
        assert gone(heart)
        before = len(fleet.heartbeats)
        fleet.until(lambda: any(h.pulses for h in fleet.heartbeats[before + 2 :]))
        assert node.child("worker.node.heartbeat") != heart
        assert fleet.lost == []

    def test_an_executor_that_will_not_let_go_is_killed_and_its_neighbours_given_back(self, fleet, placing, node):
        first, second = fleet.place(placing(SPACE, **LONG)), fleet.place(placing(SPACE, **LONG))
        fleet.until(lambda: trains(first)() and trains(second)())
        executor = node.child("worker.executor")
        os.kill(executor, signal.SIGSTOP)
        fleet.end(first.placement.placement_id)
        comes = fleet.place(placing(SPACE, **LONG))
        fleet.until(lambda: fleet.lost)
        assert gone(executor)
        assert [lost.fences for lost in fleet.lost] == [{second.placement.placement_id: 1}], "the third was never there"
        fleet.until(trains(comes))

    def test_a_killed_executor_gives_its_placement_back(self, fleet, placing, node):
        reported = fleet.place(placing(SPACE, **LONG))
        fleet.until(trains(reported))
        victim = node.child("worker.executor")
        os.kill(victim, signal.SIGKILL)
        fleet.until(lambda: fleet.lost)
        (lost,) = fleet.lost
        assert lost.reason is RequeueReason.EXECUTOR_LOST
        assert lost.fences == {reported.placement.placement_id: 1}

    def test_a_worker_that_slept_past_its_lease_changes_nothing(self, fleet, placing, node):
        reported = fleet.place(placing(SPACE, **LONG))
        fleet.until(trains(reported))
        family, beats = node.family(), len(fleet.heartbeats)
        fleet.lease_seconds = 3.0
        fleet.until(lambda: len(fleet.heartbeats) > beats + 1)  # the worker has got the short lease
        for pid in family:
            with suppress(ProcessLookupError):  # an executor that got no time for so long has given its placement back already
                os.kill(pid, signal.SIGSTOP)
        with fleet.lock:
            fleet.end(reported.placement.placement_id)  # what the reconciler does when a lease is over
            told, events, beats = len(fleet.requests), len(reported.events), len(fleet.heartbeats)
            fleet.lock.wait_for(lambda: False, timeout=3.5)  # the lease is counted on the boot clock, which goes on
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        fleet.until(lambda: len(fleet.heartbeats) > beats and not fleet.heartbeats[-1].pulses)
        said = [(path, status) for _, path, status in fleet.requests[told:] if "/placements/" in path]
        assert all(status == 409 for _, status in said), said
        assert len(reported.events) == events
        fleet.lease_seconds = 900.0

    def test_a_node_that_was_forgotten_joins_anew(self, fleet, placing, node):
        reported = fleet.place(placing(SPACE, **LONG))
        fleet.until(trains(reported))
        executor = node.child("worker.executor")
        with fleet.lock:
            fleet.credential = "another"
        fleet.until(lambda: len(fleet.registrations) == 2)
        assert gone(executor)
        first, second = fleet.registrations
        assert first.boot_id != second.boot_id

    def test_a_placement_that_is_asked_to_leave_is_safe_before_it_goes(self, fleet, placing, node):
        reported, stays = fleet.place(placing(SPACE, **LONG)), fleet.place(placing(SPACE, **LONG))
        fleet.until(lambda: trains(reported)() and trains(stays)())
        fleet.ask_to_leave(reported.placement.placement_id)
        fleet.until(lambda: reported.of(Detached))
        assert reported.checkpoints[0].step == reported.step[0]
        step = stays.step[0]
        fleet.until(lambda: stays.step[0] > step)
        assert fleet.lost == []

    def test_what_the_service_cannot_describe_goes_on_and_may_leave(self, fleet, placing, node):
        """As beside a service that was rolled back."""
        reported = fleet.place(placing(SPACE, **LONG))
        fleet.until(trains(reported))
        executor = node.child("worker.executor")
        with fleet.lock:
            fleet.unchanged, fleet.version = True, fleet.version + 1
            asked = len(fleet.requests)
        fleet.until(lambda: any(path.endswith("/desired") for _, path, _ in fleet.requests[asked:]))
        step = reported.step[0]
        fleet.until(lambda: reported.step[0] > step + 2)
        assert node.child("worker.executor") == executor
        fleet.ask_to_leave(reported.placement.placement_id)
        fleet.until(lambda: reported.of(Detached))
        assert reported.checkpoints[0].step == reported.step[0]
        assert fleet.lost == []
        with fleet.lock:
            fleet.unchanged = False

    def test_a_placement_of_a_newer_version_is_not_taken_up_and_hides_no_other(self, fleet, placing, node):
        newer = placing(SPACE, **SHORT).model_dump(mode="json")
        newer["spec"]["objective"] = {"type": "of_tomorrow"}
        with fleet.lock:
            fleet.newer.append(newer)
        sound = placing(SPACE, **SHORT)
        known = sound.model_dump(mode="json") | {"of_tomorrow": 1}
        known["spec"]["of_tomorrow"] = known["jobs"][0]["config"]["of_tomorrow"] = 1
        reported = fleet.place(Placement.model_validate(known))
        fleet.until(lambda: reported.of(JobCompleted) and fleet.lost)
        assert all(pulse.placement_id != newer["placement_id"] for beat in fleet.heartbeats for pulse in beat.pulses)
        (refused,) = [lost for lost in fleet.lost if lost.refused]
        assert list(refused.fences) == [newer["placement_id"]]
        assert "objective" in refused.detail
        assert "does not know of_tomorrow" in node.log.read_text()
        with fleet.lock:
            fleet.lost.clear()

    def test_one_that_is_to_leave_before_it_came_is_given_back(self, fleet, placing, node):
        placement = placing(SPACE, **LONG).model_copy(update={"leave": True})
        fleet.place(placement)
        fleet.until(lambda: fleet.lost)
        assert [(lost.reason, lost.fences) for lost in fleet.lost] == [(RequeueReason.PREEMPTED, {placement.placement_id: 1})]

    def test_asked_to_stop_it_brings_its_work_to_safety(self, fleet, placing, node):
        reported = fleet.place(placing(SPACE, **LONG))
        fleet.until(trains(reported))
        family = node.family()
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(timeout=PATIENCE) == 0
        assert all(gone(pid) for pid in family)
        begun, lost = fleet.lost
        assert (begun.stopping, begun.fences, lost.stopping) == (True, {}, True)
        assert (lost.reason, len(lost.fences)) == (RequeueReason.NODE_LOST, 1)
        (checkpointed,) = reported.of(Checkpointed)
        assert checkpointed.jobs[0].step == reported.step[0]


def test_asked_to_stop_it_waits_for_a_service_that_is_slow(tiny_base, tmp_path):
    """Longer than any step and any request take under load."""
    with fleet_with_placements(tiny_base, tmp_path) as (fleet, placing), running(fleet, tmp_path) as node:
        reported = fleet.place(placing(SPACE, **LONG))
        fleet.until(trains(reported))
        fleet.down = True
        node.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            node.process.wait(timeout=9)
        fleet.down = False
        assert node.process.wait(timeout=PATIENCE) == 0
        (checkpointed,) = reported.of(Checkpointed)
        assert checkpointed.jobs[0].step == reported.step[0]


def test_asked_to_stop_it_ends_within_its_bound(tiny_base, tmp_path):
    with (
        fleet_with_placements(tiny_base, tmp_path) as (fleet, placing),
        running(fleet, tmp_path, MOTET_WORKER_STOP_SECONDS="1") as node,
    ):
        reported = fleet.place(placing(SPACE, **LONG))
        fleet.until(trains(reported))
        family = node.family()
        fleet.down = True
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(timeout=PATIENCE) == 0
        assert all(gone(pid) for pid in family)
        assert not reported.of(Checkpointed)


def test_hints_bring_what_no_heartbeat_would_and_survive_redis(tiny_base, tmp_path, stack):
    with (
        fleet_with_placements(tiny_base, tmp_path, heartbeat_seconds=3600.0) as (fleet, placing),
        running(fleet, tmp_path, MOTET_REDIS_URL=stack.valkey.url("node")) as node,
    ):
        fleet.until(lambda: fleet.heartbeats)
        first = fleet.place(placing(SPACE, **SHORT))
        with redis.Redis.from_url(stack.redis_url) as valkey:
            valkey.xadd("motet:node:node_1", {"kind": "desired"})
        acknowledged = fleet.until(lambda: [p for h in fleet.heartbeats for p in h.pulses])
        assert acknowledged[0].placement_id == first.placement.placement_id
        asked = [path for _, path, _ in fleet.requests if path.endswith("/desired")]
        assert len(asked) <= 5, "it does not poll"
        fleet.until(lambda: first.ended)
        stack.stop_valkey()
        second = fleet.place(placing(SPACE, **SHORT))
        stack.start_valkey()  # empty, and nobody hints: to find it again is a reason to ask
        fleet.until(lambda: second.ended)
        left = f"placement {second.placement.placement_id} has left its executor"
        fleet.until(lambda: left in node.log.read_text())  # until then the daemon would give it back
        node.process.send_signal(signal.SIGINT)
        assert node.process.wait(timeout=PATIENCE) == 0
        assert [lost.fences for lost in fleet.lost] == [{}, {}], "it says that it stops, and lost nothing"


def test_it_waits_for_its_service_and_nothing_outlives_it(tiny_base, tmp_path):
    with fleet_with_placements(tiny_base, tmp_path) as (fleet, placing):
        fleet.down = True
        with running(fleet, tmp_path) as node:
            fleet.until(lambda: len(fleet.requests) >= 2)
            fleet.down = False
            fleet.until(lambda: fleet.registrations)
            reported = fleet.place(placing(SPACE, **LONG))
            fleet.until(trains(reported))
            family = node.family()
            assert len(family) == 3
            node.process.kill()
            assert all(gone(pid) for pid in family[1:])


@pytest.mark.parametrize("sharding", ["never", "always"])
def test_a_killed_rank_gives_the_placement_back_and_its_jobs_go_on(tiny_base, tmp_path, sharding):
    """kill -9 of a rank ends the executor, and a stopped one ends with its executor, which the daemon kills; also where each
    holds a shard of the base."""
    own = {"MOTET_WORKER_SLOTS": "2", "MOTET_WORKER_CHECKPOINT_SECONDS": "0.1", "MOTET_WORKER_SHARDING": sharding}
    with (
        fleet_with_placements(tiny_base, tmp_path) as (fleet, placing),
        running(fleet, tmp_path, **own) as node,
    ):
        space = {**SPACE, "learning_rate": [1e-3, 3e-3]}
        wide = {"device_indexes": [0, 1]}
        reported = fleet.place(placing(space, **LONG).model_copy(update=wide))
        fleet.until(lambda: len(reported.checkpoints) == 2)
        (rank,) = node.ranks()
        os.kill(rank, signal.SIGKILL)
        fleet.until(lambda: fleet.lost)
        assert fleet.lost[0].reason is RequeueReason.EXECUTOR_LOST
        assert fleet.lost[0].fences == {reported.placement.placement_id: 1}
        again = fleet.place(resumed(reported, "again").model_copy(update=wide))
        fleet.until(lambda: all(again.curves[job, "train_loss"] for job in (0, 1)))
        for job in (0, 1):
            assert min(again.curves[job, "train_loss"]) == reported.checkpoints[job].step + 1
        (rank,) = node.ranks()
        os.kill(rank, signal.SIGSTOP)
        fleet.end("again")  # what a service does about a placement that makes no progress
        assert gone(rank)


def test_a_wrong_configuration_says_so_in_one_line(fleet, tmp_path):
    with refused(fleet, tmp_path, MOTET_JOIN_TOKEN="wrong") as (code, said):
        assert code == 2
        last = said.splitlines()[-1]
        assert last.startswith("motet worker: node node may not join: ")
        assert last.endswith("MOTET_JOIN_TOKEN is refused: POST /internal/v1/nodes: 401 join_refused the join token is wrong")
    with refused(fleet, tmp_path, MOTET_API_URL="localhost:8321") as (code, said):
        assert (code, said) == (2, "motet worker: MOTET_API_URL: must start with http:// or https://, got 'localhost:8321'\n")
    with refused(fleet, tmp_path, MOTET_WORKER_DEVICE="cuda", PATH="/nonexistent") as (code, said):
        assert code == 2
        assert "MOTET_WORKER_DEVICE is cuda, but nvidia-smi lists no GPU" in said
