"""Queue worker and reconciler touch the file that a liveness probe looks at: idle, and without a Valkey too."""

import os
from pathlib import Path

import pytest

from tests.service.background.queue_processes import Service
from tests.service.background.test_queue import until


@pytest.mark.parametrize(("program", "valkey"), [("queue", True), ("queue", False), ("reconcile", True)])
def test_an_idle_program_goes_on_touching_its_file(program, valkey, settings_for, database_url, environment_of, tmp_path):
    alive = tmp_path / "alive"
    settings = settings_for(database_url, tmp_path, reconcile_seconds=0.2)
    environment = environment_of(settings) | {"MOTET_LIVENESS_FILE": str(alive)}
    if not valkey:
        environment["MOTET_REDIS_URL"] = f"unix://{tmp_path}/nobody"
    service = Service(settings, environment, tmp_path)
    service.start(program)
    try:
        for _ in range(2):
            until(alive.exists)
            os.utime(alive, (0, 0))
            until(lambda: touched(alive))
    finally:
        service.stop()


def touched(alive: Path) -> bool:
    return alive.stat().st_mtime > 0
