"""A rank of an executor as a process, a child of rank 0, or of the agent on a further host. Knows sockets and signals alone."""

import signal
import socket
import sys

from pydantic import TypeAdapter

from worker.parent_watchdog import exit_with_parent
from worker.replicas.ranks.rank_link import HostRankLink, RankLink
from worker.replicas.ranks.rank_server import RankServer
from worker.replicas.ranks.shared_host_memory import SharedHostMemory
from worker.stderr_logging import log_to_stderr
from worker.stepping_process import settle


def main() -> None:
    log_to_stderr()
    exit_with_parent(TypeAdapter(None), lambda nothing: None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # rank 0 still wants its adapters; it ends this process
    settle()
    memory = SharedHostMemory(lends=True)
    end = socket.socket(fileno=int(sys.argv[1]))
    RankServer(RankLink(end, memory) if end.family == socket.AF_UNIX else HostRankLink(end), memory).serve()
