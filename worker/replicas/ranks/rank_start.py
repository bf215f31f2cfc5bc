"""Starts a rank's process, on this host as a child of rank 0, or on a further host by its agent. Knows no calls."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping

from pydantic import SecretStr

from worker import killed_process
from worker.child_environment import without_secrets
from worker.hosts.host_link import HostRefused, HostUnreachable
from worker.hosts.host_messages import RANK_MODULE
from worker.hosts.host_process import HostProcess
from worker.parent_watchdog import dying_with_parent
from worker.replicas.ranks.rank_link import HostRankLink, RankLink
from worker.replicas.ranks.shared_host_memory import SharedHostMemory

_END_SECONDS = 5.0  # for a process whose pipe is closed, and for an agent to kill one


class RankLost(RuntimeError):
    """A rank has ended, or broke the link, and what it held is lost; or it could not be started."""


class LocalRank:
    """`owner`: of the segments that it lends, its pid."""

    def __init__(self, environment: Mapping[str, str], memory: SharedHostMemory) -> None:
        """environment: besides this process's own. Raises RankLost."""
        ours, its = socket.socketpair()
        with its:
            try:
                self._process = subprocess.Popen(
                    [*dying_with_parent(), sys.executable, "-m", RANK_MODULE, str(its.fileno())],
                    env=without_secrets(os.environ) | dict(environment),
                    stdin=subprocess.PIPE,  # its end tells the rank that this process has ended
                    pass_fds=[its.fileno()],
                )
            except OSError as error:
                ours.close()
                raise RankLost(f"a rank could not be started: {error}") from None
        self.link, self.pid = RankLink(ours, memory), self._process.pid
        self.owner = self.pid

    @property
    def name(self) -> str:
        """For messages."""
        return f"pid {self.pid}"

    @property
    def ended(self) -> bool:
        """From any thread."""
        return self._process.poll() is not None

    def how(self) -> str:
        """How the link ended."""
        try:
            return f"ended with {self._process.wait(_END_SECONDS)}"
        except subprocess.TimeoutExpired:
            return "broke its link"

    def kill(self) -> None:
        """From any thread."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process, and wait for its end, but not for ever: a system call of it may hang, in a driver."""
        killed_process.kill(self._process, "rank", killed_process.DEVICE_SECONDS)
        self.link.close()
        if self._process.stdin is not None:
            self._process.stdin.close()


class HostRank:
    """As LocalRank; it lends no segments."""

    owner = None

    def __init__(self, address: str, secret: SecretStr, environment: Mapping[str, str]) -> None:
        """environment: besides that of the agent at `address`. Raises RankLost."""
        try:
            self._process = HostProcess(address, secret, RANK_MODULE, environment)
        except (HostUnreachable, HostRefused) as error:
            raise RankLost(f"a rank could not be started: {error}") from None
        self.link, self.pid = HostRankLink(self._process.socket), self._process.pid

    @property
    def name(self) -> str:
        """For messages."""
        return self._process.name

    @property
    def ended(self) -> bool:
        """From any thread."""
        return self._process.ended

    def how(self) -> str:
        """How the link ended."""
        return "ended, or its host is lost"

    def kill(self) -> None:
        """From any thread."""
        self._process.kill()

    def close(self) -> None:
        """Kill the process, and wait for its end."""
        self._process.close(_END_SECONDS)
