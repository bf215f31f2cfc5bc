"""The daemon touches the file that a liveness probe looks at: while it waits for its service, and when nothing happens."""

from tests.worker.running_node import await_touch, fleet_with_placements, running


def test_a_daemon_to_which_nothing_happens_goes_on_touching_its_file(tiny_base, tmp_path):
    alive = tmp_path / "alive"
    with fleet_with_placements(tiny_base, tmp_path, heartbeat_seconds=3600.0) as (fleet, _):
        fleet.down = True
        with running(fleet, tmp_path, MOTET_LIVENESS_FILE=str(alive)):
            for _ in range(2):
                await_touch(alive)
            fleet.down = False
            fleet.until(lambda: fleet.heartbeats)
            for _ in range(2):
                await_touch(alive)
