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
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from pydantic import SecretStr

from contract.processes import reproducibility
from worker import killed_process
from worker.boot_clock import boot_now
from worker.child_environment import without_secrets
from worker.hosts.device_discovery import beyond_hardware, find_devices
from worker.hosts.host_link import HostLink, HostRefused, HostUnreachable, accepted, parts_of
from worker.hosts.host_map import merged
from worker.hosts.host_messages import EXECUTOR_MODULE, REQUESTS, Declined, HostDescription, Join, Leaving, Pong, Start, Started
from worker.hosts.program_versions import program_versions
from worker.parent_watchdog import dying_with_parent
from worker.pinned_memory import allocate_by_threads
from worker.settings import Settings, SettingsError
from worker.stderr_logging import log_to_stderr

log = logging.getLogger(__name__)

SILENCE_SECONDS = 60.0  # without a ping, after which the node's first host is taken for lost
_STRANGERS = 32  # connections at a time that have not proved that they have the secret
_PAUSE_SECONDS = 1.0  # before the next connection is accepted, where one could not be
_LEAVE_SECONDS = 15.0  # beyond the node's stop seconds, for it to hear that this host leaves, and to give back what runs


class HostAgent:
    """One node at a time, its processes and the connection that the node keeps."""

    def __init__(self, secret: SecretStr, description: HostDescription, versions: Mapping[str, str]) -> None:
        self._secret, self._description, self._versions = secret, description, versions
        self._changed = threading.Condition()
        self._folder: str | None = None  # of the node that this host belongs to
        self._node: HostLink | None = None
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._stopping = threading.Event()
        self._strangers = threading.BoundedSemaphore(_STRANGERS)

    def serve(self, listener: socket.socket) -> None:
        """Answer connections until `stop`."""
        while not self._stopping.is_set():
            try:
                end, (host, port) = listener.accept()
            except OSError as error:
                if not self._stopping.is_set():
                    log.error("no connection can be accepted: %s", error)
                    self._stopping.wait(_PAUSE_SECONDS)
                continue
            name = f"{host}:{port}"
            if not self._strangers.acquire(blocking=False):
                log.warning("%s is turned away: %d others have not said who they are yet", name, _STRANGERS)
                end.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(end, name), name=f"connection of {name}", daemon=True).start()
            except RuntimeError as error:
                log.error("%s is turned away: %s", name, error)
                self._strangers.release()
                end.close()
                self._stopping.wait(_PAUSE_SECONDS)

    def stop(self, listener: socket.socket) -> None:
        """Accept nobody any more, and tell the node that this host leaves."""
        self._stopping.set()
        with suppress(OSError):  # it is closed already
            listener.shutdown(socket.SHUT_RDWR)

    def leave(self, seconds: float) -> None:
        """Wait so long for the node to give this host back, then kill what runs."""
        with self._changed:
            self._changed.wait_for(lambda: self._node is None, timeout=seconds)
            self._kill()

    def _serve(self, end: socket.socket, name: str) -> None:
        try:
            try:
                link = accepted(end, name, self._secret)
                asked = link.receive(REQUESTS)
            finally:
                self._strangers.release()
            match asked:
                case Join():
                    self._accompany(link, asked)
                case Start():
                    self._run(link, asked)
                case other:
                    raise HostRefused(f"{name} begins with {other.kind}")
        except HostRefused as error:
            log.warning("a connection ends: %s", error)
        except HostUnreachable as error:
            log.debug("a connection ends: %s", error)
        finally:
            end.close()

    # ---- the node --------------------------------------------------------------------------------------------------

    def _accompany(self, link: HostLink, asked: Join) -> None:
        """Be a host of the node as long as it keeps the connection and pings."""
        why = self._misfit(asked) or self._take_place(link, asked.folder)
        if why is not None:
            log.warning("the node of %s may not have this host: %s", link.name, why)
            link.send(Declined(why=why))
            return
        log.info("belongs to the node of %s", link.name)
        try:
            link.send(self._description)
            link.set_timeout(SILENCE_SECONDS)
            while True:
                link.receive(REQUESTS)
                link.send(Leaving() if self._stopping.is_set() else Pong(boot_time=boot_now()))
        finally:
            self._give_up_place(link)

    def _misfit(self, asked: Join) -> str | None:
        """In words why this host cannot be one of that node; None if it can."""
        names = self._versions.keys() | asked.versions.keys()
        for name in sorted(names):
            own, wanted = self._versions.get(name, "none"), asked.versions.get(name, "none")
            if own != wanted:
                return f"it has {name} {own}, and the node's first host {wanted}; hosts of a node have equal versions"
        if not (Path(asked.folder) / asked.probe).is_file():
            return (
                f"it does not see the file {asked.probe}, which the node's first host has just written, in {asked.folder}; "
                "MOTET_WORKER_DIR is one folder for all hosts of a node, on a file system that they share"
            )
        return None

    def _take_place(self, link: HostLink, folder: str) -> str | None:
        """Keep the node's connection instead of its former one. In words why not, where the host is another's."""
        with self._changed:
            if self._node is not None and self._folder != folder:
                return f"it belongs to another node, whose folder is {self._folder}"
            if self._node is not None:
                with suppress(OSError):  # its other end has ended already
                    self._node.socket.shutdown(socket.SHUT_RDWR)
            self._node, self._folder = link, folder
            self._kill()
        return None

    def _give_up_place(self, link: HostLink) -> None:
        with self._changed:
            if self._node is link:
                log.info("belongs to no node any more")
                self._node = self._folder = None
                self._kill()
                self._changed.notify_all()

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    # ---- processes -------------------------------------------------------------------------------------------------

    def _run(self, link: HostLink, asked: Start) -> None:
        """Start the process, and wait for its end or that of the connection. This thread stays its parent."""
        with self._changed:
            if self._node is None:
                link.send(Declined(why="this host belongs to no node"))
                return
            link.set_timeout(None)
            try:
                process = _started(asked, link.socket.fileno())
            except OSError as error:
                link.send(Declined(why=f"{asked.module} cannot be started: {error}"))
                return
            self._processes.add(process)
        log.info("%s (pid %d) starts for %s", asked.module, process.pid, link.name)
        try:
            link.send(Started(pid=process.pid))
            _await_end(process, link.socket)
        finally:
            ended = killed_process.kill(process, asked.module, killed_process.DEVICE_SECONDS)
            with self._changed:
                self._processes.discard(process)
            if process.stdin is not None:
                process.stdin.close()
            with suppress(OSError):  # so that the other end sees it, whoever inherited the connection
                link.socket.shutdown(socket.SHUT_RDWR)
        if ended:
            log.info("%s (pid %d) ended with %d", asked.module, process.pid, process.returncode)


def _started(asked: Start, end: int) -> "subprocess.Popen[bytes]":
    command = [*dying_with_parent(), sys.executable, "-m", asked.module]
    environment = merged(os.environ, asked.environment)
    if asked.module == EXECUTOR_MODULE:
        return subprocess.Popen(command, env=environment, stdin=end, stdout=end)
    # its standard input tells a rank that the agent has ended
    environment = without_secrets(environment)
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


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises SettingsError."""
    if settings.worker_listen is None or settings.worker_hosts_secret is None:
        raise SettingsError("MOTET_WORKER_LISTEN (host:port) and MOTET_WORKER_HOSTS_SECRET are what a further host needs")
    devices = find_devices(settings)
    description = HostDescription(devices=devices, lacking=sorted(beyond_hardware(devices)), agent=os.urandom(16).hex())
    agent = HostAgent(settings.worker_hosts_secret, description, program_versions())
    try:
        listener = socket.create_server(parts_of(settings.worker_listen), family=socket.AF_INET)
    except OSError as error:
        raise SettingsError(f"MOTET_WORKER_LISTEN: cannot listen at {settings.worker_listen}: {error.strerror}") from None
    with listener:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.stop(listener))
        log.info("the agent of a further host listens at %s", settings.worker_listen)
        agent.serve(listener)
    agent.leave(settings.worker_stop_seconds + _LEAVE_SECONDS)


def main() -> int:
    log_to_stderr()
    reproducibility.turn_on(os.environ)  # processes inherit both
    allocate_by_threads(os.environ)
    try:
        run(Settings.load())
    except PackageNotFoundError as error:
        sys.stderr.write(f"motet worker host: the package {error.name} is not installed; run: pip install 'motet[worker]'\n")
        return 2
    except SettingsError as error:
        sys.stderr.write(f"motet worker host: {error}\n")
        return 2
    return 0
