"""A daemon between versions: what it says of itself, what it cannot read, and a thread of it that dies."""

import signal
import subprocess
import sys

import pytest

from contract.compatibility.capabilities import understood
from contract.compatibility.protocol import PROTOCOL
from contract.states import RequeueReason
from tests.worker.running_node import LONG, PATIENCE, SHORT, SPACE, fleet_with_placements, refused, running, trains

HANGS_AND_DIES = "heartbeats go on while this thread is dead"
DIES_PARSING = f"""
import sys
from worker.api_client import NodeLink
def desired(self, node_id, credential):
    raise RuntimeError({HANGS_AND_DIES!r})
NodeLink.desired = desired
from worker.__main__ import main
sys.exit(main())
"""


@pytest.fixture
def fleet_of(tiny_base, tmp_path):
    with fleet_with_placements(tiny_base, tmp_path) as made:
        yield made


def test_a_placement_that_cannot_be_read_is_refused_alone(fleet_of, tmp_path):
    fleet, placing = fleet_of
    with running(fleet, tmp_path) as node:
        strange, plain = placing(SPACE, **SHORT), placing(SPACE, **SHORT)
        fleet.strange[strange.placement_id] = {"precision": "int3"}
        fleet.place(strange)
        reported = fleet.place(plain)
        fleet.until(lambda: reported.ended and fleet.lost)
        (lost,) = fleet.lost
        assert (lost.reason, lost.fences, lost.refused) == (RequeueReason.NODE_LOST, {strange.placement_id: 1}, True)
        assert "spec.precision" in lost.detail
        assert node.process.poll() is None


def test_a_desired_state_that_is_refused_again_and_again_is_told_once(fleet_of, tmp_path):
    """Each heartbeat asks for it again, for as long as that lasts."""
    fleet, placing = fleet_of
    answer, refused = fleet._answer, []

    def refusing(method, path, bearer, body):
        if path.endswith("/desired") and len(refused) < 4:
            refused.append(path)
            return 413, b'{"code": "too_large", "detail": "it is too large"}'
        return answer(method, path, bearer, body)

    with running(fleet, tmp_path) as node:
        fleet.until(lambda: fleet.heartbeats)
        fleet._answer = refusing
        reported = fleet.place(placing(SPACE, **SHORT))
        fleet.until(lambda: reported.ended)
        assert len(refused) == 4
        assert node.log.read_text().count("the service refuses to tell what to run: ") == 1


def test_a_thread_that_dies_ends_the_daemon_and_all_below_it(fleet_of, tmp_path):
    fleet, _ = fleet_of
    with running(fleet, tmp_path, program=("-c", DIES_PARSING)) as node:
        assert node.process.wait(timeout=PATIENCE) == 70
        said = node.log.read_text()
        assert "thread desired state died, and the process with it" in said
        assert HANGS_AND_DIES in said


@pytest.mark.parametrize(("module", "code"), [("worker.thread_guard", 70), ("service.thread_excepthook", -signal.SIGKILL)])
def test_a_dead_thread_is_the_end_of_its_process(module, code):
    program = (
        f"import threading; from {module} import end_process_with_its_threads as guard\n"
        "guard()\n"
        "threading.Thread(target=lambda: 1 / 0, name='doomed').start()\n"
        "threading.Event().wait()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == code
    assert "thread doomed died" in ended.stderr
    assert "ZeroDivisionError" in ended.stderr


def test_what_it_registers_with_and_what_it_acted_upon(fleet_of, tmp_path):
    fleet, placing = fleet_of
    with running(fleet, tmp_path) as node:
        (registered,) = fleet.registrations
        assert registered.protocol == PROTOCOL
        assert set(registered.capabilities) == understood() - {"precision=fp8"}  # which no CPU multiplies in
        assert registered.versions["motet"]
        reported = fleet.place(placing(SPACE, **LONG))
        fleet.until(trains(reported))
        fleet.until(lambda: fleet.heartbeats[-1].applied_version == fleet.version)
        assert fleet.heartbeats[-1].applied_age < 60
        node.process.send_signal(signal.SIGSTOP)  # the daemon alone: its heartbeat goes on by itself
        acted = fleet.version
        fleet.end(reported.placement.placement_id)
        beats = len(fleet.heartbeats)
        fleet.until(lambda: len(fleet.heartbeats) >= beats + 5)
        before, after = fleet.heartbeats[beats + 1], fleet.heartbeats[-1]
        assert (before.applied_version, after.applied_version) == (acted, acted)
        assert after.applied_age > before.applied_age
        node.process.send_signal(signal.SIGCONT)
        fleet.until(lambda: fleet.heartbeats[-1].applied_version == fleet.version)


def test_a_service_too_far_away_is_not_joined(fleet_of, tmp_path):
    fleet, _ = fleet_of
    fleet.welcomes["protocol"] = PROTOCOL + 2
    with refused(fleet, tmp_path) as (code, said):
        assert code == 2
        assert f"speaks protocol {PROTOCOL + 2}" in said.splitlines()[-1]


def test_a_node_says_which_bases_its_disk_holds_whole(fleet_of, tmp_path):
    fleet, _ = fleet_of
    held, coming, bases = "a" * 64, "b" * 64, tmp_path / "node" / "bases"
    (bases / held).mkdir(parents=True)
    (bases / f"{coming}.partial").mkdir()
    (bases / "rate").write_text("1000.0")
    with running(fleet, tmp_path):
        (registered,) = fleet.registrations
        assert registered.bases == [held]
        fleet.until(lambda: fleet.heartbeats)
        assert (fleet.heartbeats[-1].bases, fleet.heartbeats[-1].base_bytes_per_second) == ([held], 1000.0)
        (bases / f"{coming}.partial").rename(bases / coming)
        fleet.until(lambda: fleet.heartbeats[-1].bases == [held, coming])
