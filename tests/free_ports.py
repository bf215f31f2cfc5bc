"""TCP ports for servers that tests start. Not from those that the kernel gives to connections and to port 0: such a one may be
taken again between being found and being listened on."""

import os
import random
import socket
from pathlib import Path

_LOWEST = 20_000
_given: set[int] = set()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on and no test of this run was given: each test process has its share."""
    given_by_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if given_by_kernel <= _LOWEST:
        return _bound(0)
    process, processes = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    share = range(_LOWEST + int(process.removeprefix("gw")), given_by_kernel, int(processes))
    while True:
        port = random.SystemRandom().choice(share)
        if port not in _given:
            _given.add(port)
            try:
                return _bound(port)
            except OSError:
                continue  # taken


def _bound(port: int) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        return int(probe.getsockname()[1])
