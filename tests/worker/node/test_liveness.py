"""The daemon touches the file that a liveness probe looks at: while it waits for its service, and when nothing happens. A disk
that cannot keep it ends no daemon."""

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


def test_a_disk_that_does_not_keep_its_file_ends_no_daemon(tiny_base, tmp_path):
    alive = tmp_path / "mounted" / "alive"
    with (
        fleet_with_placements(tiny_base, tmp_path) as (fleet, _),
        running(fleet, tmp_path, MOTET_LIVENESS_FILE=str(alive)) as node,
    ):
        fleet.until(lambda: len(fleet.heartbeats) > 2)
        alive.parent.mkdir()
        await_touch(alive)
        assert node.log.read_text().count("MOTET_LIVENESS_FILE cannot be touched") == 1
        assert len(fleet.registrations) == 1
