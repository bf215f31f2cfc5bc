"""The agent of a further host of a node: says which devices the host has, and starts executors and ranks for the first host.

A process that it starts has the connection by which it was asked for: an executor as its standard input and output, a rank as
its socket. The agent reads nothing of it; when the other end closes it, or is lost with its host, it kills the process.
"""

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from pydantic import SecretStr

from contract.processes import reproducibility
from worker.boot_clock import boot_now
from worker.hosts.device_discovery import beyond_hardware, find_devices
from worker.hosts.host_link import HostLink, HostRefused, HostUnreachable, accepted, parts_of
from worker.hosts.host_map import merged
from worker.hosts.host_messages import EXECUTOR_MODULE, REQUESTS, Declined, HostDescription, Join, Pong, Start, Started
from worker.parent_watchdog import dying_with_parent
from worker.settings import Settings, SettingsError
from worker.stderr_logging import log_to_stderr

log = logging.getLogger(__name__)

SILENCE_SECONDS = 60.0  # without a ping, after which the node's first host is taken for lost


class HostAgent:
    """One node at a time, its processes and the connection that the node keeps."""

    def __init__(self, settings: Settings, secret: SecretStr) -> None:
        self._settings, self._secret = settings, secret
        self._changes = threading.Lock()
        self._folder: str | None = None  # of the node that this host belongs to
        self._node: HostLink | None = None
        self._processes: set[subprocess.Popen[bytes]] = set()

    def serve(self, listener: socket.socket) -> None:
        """Answer connections until the listener is closed."""
        while True:
            try:
                end, (host, port) = listener.accept()
            except OSError:
                return
            name = f"{host}:{port}"
            threading.Thread(target=self._serve, args=(end, name), name=f"connection of {name}", daemon=True).start()

    def _serve(self, end: socket.socket, name: str) -> None:
        try:
            link = accepted(end, name, self._secret)
            match link.receive(REQUESTS):
                case Join() as asked:
                    self._accompany(link, asked)
                case Start() as asked:
                    self._run(link, asked)
                case asked:
                    raise HostRefused(f"{name} begins with {asked.kind}")
        except (HostRefused, HostUnreachable) as error:
            log.warning("a connection ends: %s", error)
        finally:
            end.close()

    # ---- the node --------------------------------------------------------------------------------------------------

    def _accompany(self, link: HostLink, asked: Join) -> None:
        """Be a host of the node as long as it keeps the connection and pings."""
        why = self._unfit(asked) or self._taken(link, asked.folder)
        if why is not None:
            log.warning("the node of %s may not have this host: %s", link.name, why)
            link.send(Declined(why=why))
            return
        log.info("belongs to the node of %s", link.name)
        try:
            devices = find_devices(self._settings)
            link.send(HostDescription(devices=devices, lacking=sorted(beyond_hardware(devices))))
            link.limit(SILENCE_SECONDS)
            while True:
                link.receive(REQUESTS)
                link.send(Pong(boot_time=boot_now()))
        finally:
            self._leave(link)

    def _unfit(self, asked: Join) -> str | None:
        own = version("motet")
        if asked.version != own:
            return f"it runs motet {own}, and the node's first host {asked.version}; hosts of a node are updated together"
        if not (Path(asked.folder) / asked.probe).is_file():
            return (
                f"it does not see the file {asked.probe}, which the node's first host has just written, in {asked.folder}; "
                "MOTET_WORKER_DIR is one folder for all hosts of a node, on a file system that they share"
            )
        return None

    def _taken(self, link: HostLink, folder: str) -> str | None:
        """Take the node's place, or that of its former connection. In words why not, where the host is another's."""
        with self._changes:
            if self._node is not None and self._folder != folder:
                return f"it belongs to another node, whose folder is {self._folder}"
            if self._node is not None:
                self._node.socket.shutdown(socket.SHUT_RDWR)
            self._node, self._folder = link, folder
            self._kill()
        return None

    def _leave(self, link: HostLink) -> None:
        with self._changes:
            if self._node is link:
                log.info("belongs to no node any more")
                self._node = self._folder = None
                self._kill()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    def close(self) -> None:
        """Kill all processes."""
        with self._changes:
            self._kill()

    # ---- processes -------------------------------------------------------------------------------------------------

    def _run(self, link: HostLink, asked: Start) -> None:
        """Start the process, and wait for its end or that of the connection. This thread stays its parent."""
        with self._changes:
            if self._node is None:
                link.send(Declined(why="this host belongs to no node"))
                return
            link.limit(None)
            process = self._started(asked, link.socket.fileno())
            self._processes.add(process)
        log.info("%s (pid %d) starts for %s", asked.module, process.pid, link.name)
        try:
            link.send(Started(pid=process.pid))
            _await_end(process, link.socket)
        finally:
            process.kill()
            code = process.wait()
            with self._changes:
                self._processes.discard(process)
            if process.stdin is not None:
                process.stdin.close()
        log.info("%s (pid %d) ended with %d", asked.module, process.pid, code)

    @staticmethod
    def _started(asked: Start, end: int) -> "subprocess.Popen[bytes]":
        command = [*dying_with_parent(), sys.executable, "-m", asked.module]
        environment = merged(os.environ, asked.environment)
        if asked.module == EXECUTOR_MODULE:
            return subprocess.Popen(command, env=environment, stdin=end, stdout=end)
        # its standard input tells a rank that the agent has ended
        return subprocess.Popen([*command, str(end)], env=environment, stdin=subprocess.PIPE, pass_fds=[end])


def _await_end(process: "subprocess.Popen[bytes]", end: socket.socket) -> None:
    """Until the process has ended, or the other end of the connection has closed."""
    descriptor = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.register(end, select.POLLRDHUP)
        poll.poll()
    finally:
        os.close(descriptor)


def listening(address: str) -> socket.socket:
    """Raises SettingsError."""
    try:
        return socket.create_server(parts_of(address), family=socket.AF_INET)
    except OSError as error:
        raise SettingsError(f"MOTET_WORKER_LISTEN: cannot listen at {address}: {error.strerror}") from None


def run(settings: Settings, stopped: Callable[[Callable[[], None]], None]) -> None:
    """Serve until `stopped` calls what it is given. Raises SettingsError."""
    if settings.worker_listen is None or settings.worker_hosts_secret is None:
        raise SettingsError("MOTET_WORKER_LISTEN (host:port) and MOTET_WORKER_HOSTS_SECRET are what a further host needs")
    find_devices(settings)
    with listening(settings.worker_listen) as listener:
        stopped(lambda: listener.shutdown(socket.SHUT_RDWR))
        log.info("a further host of a node, at %s", settings.worker_listen)
        agent = HostAgent(settings, settings.worker_hosts_secret)
        agent.serve(listener)
        agent.close()


def main() -> int:
    log_to_stderr()
    reproducibility.turn_on(os.environ)  # processes inherit it

    def on_signal(stop: Callable[[], None]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop())

    try:
        run(Settings.load(), on_signal)
    except SettingsError as error:
        sys.stderr.write(f"motet worker host: {error}\n")
        return 2
    return 0
