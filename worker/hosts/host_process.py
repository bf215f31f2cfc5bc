"""A process on a further host of the node, as the one that had it started sees it: a socket, whose end is its end."""

import socket
from collections.abc import Mapping
from contextlib import suppress

from pydantic import SecretStr

from worker.hosts.host_link import HostLink, HostRefused, connect, ended
from worker.hosts.host_messages import ANSWERS, Declined, Start, Started


class HostProcess:
    """`socket`: the process's own from now on. `pid`: on its host."""

    def __init__(self, address: str, secret: SecretStr, module: str, environment: Mapping[str, str]) -> None:
        """Have the agent at `address` start it. Raises HostUnreachable, and HostRefused."""
        self.address = address
        link = connect(address, secret)
        try:
            self.pid = _started(link, Start.model_validate({"module": module, "environment": dict(environment)}))
        except BaseException:
            link.close()
            raise
        link.set_timeout(None)
        self.socket = link.socket

    @property
    def name(self) -> str:
        """For messages."""
        return f"pid {self.pid} of {self.address}"

    @property
    def ended(self) -> bool:
        """Whether the process has ended, or its host is lost. From any thread."""
        return ended(self.socket)

    def kill(self) -> None:
        """Have the agent kill the process, whatever it is at. What has arrived of it can still be read. From any thread."""
        with suppress(OSError):  # the connection has ended
            self.socket.shutdown(socket.SHUT_WR)

    def close(self, seconds: float = 0.0) -> None:
        """Kill the process, and wait so long for the agent to have done so."""
        self.kill()
        ended(self.socket, seconds)
        self.socket.close()


def _started(link: HostLink, start: Start) -> int:
    link.send(start)
    match link.receive(ANSWERS):
        case Started(pid=pid):
            return pid
        case Declined(why=why):
            raise HostRefused(f"{link.name}: {why}")
        case other:
            raise HostRefused(f"{link.name} answers with {other.kind}")
