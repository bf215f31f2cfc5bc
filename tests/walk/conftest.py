"""Whole stacks of real processes take long where the cores are busy with something else."""

from pathlib import Path

import pytest

ROOM = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(ROOM) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1200))
