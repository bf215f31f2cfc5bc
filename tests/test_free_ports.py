"""Ports that tests are given: none twice, whichever test process asks."""

import pytest

from tests.free_ports import free_port


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    given: list[int] = []
    for process in ("gw0", "gw1", "gw2"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", process)
        monkeypatch.setattr("tests.free_ports._given", set())  # as of a process of its own
        given += [free_port() for _ in range(400)]
    assert len(set(given)) == len(given)
