"""One executor as a process, a child of the daemon. Knows pipes and signals alone."""

import signal

from worker.api_client import PlacementLink
from worker.executor.training_loop import Executor
from worker.parent_watchdog import exit_with_parent
from worker.pipe_messages import COMMANDS, Stop, Writer, take_stdout
from worker.settings import Settings
from worker.stderr_logging import log_to_stderr
from worker.stepping_process import settle
from worker.thread_guard import threads_end_after


def main() -> None:
    log_to_stderr()
    settings = Settings.load()
    writer = Writer(take_stdout())
    with PlacementLink(settings.api_url) as link:
        executor = Executor(settings, link, writer.write)
        settle()
        exit_with_parent(COMMANDS, executor.handle_command)
        signal.signal(signal.SIGTERM, lambda *_: executor.handle_command(Stop(seconds=settings.worker_stop_seconds)))
        executor.run(threads_end_after())
