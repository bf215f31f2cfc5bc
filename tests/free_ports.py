"""TCP ports for servers that tests start. Not from those that the kernel gives to connections and to port 0: such a one may be
taken again between being found and being listened on."""

import random
import socket
from pathlib import Path

_LOWEST = 20_000


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on; processes that look at once find different ones."""
    given_by_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if given_by_kernel <= _LOWEST:
        return _bound(0)
    while True:
        try:
            return _bound(random.SystemRandom().randrange(_LOWEST, given_by_kernel))
        except OSError:
            continue  # taken


def _bound(port: int) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        return int(probe.getsockname()[1])
