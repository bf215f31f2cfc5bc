"""One merge as a process, a child of the daemon, which takes what processor time training leaves."""

import os

import torch

from worker.api_client import PlacementLink
from worker.export.merge_run import MergeProcess
from worker.parent_watchdog import exit_with_parent
from worker.pipe_messages import MERGE_COMMANDS, Writer, take_stdout
from worker.settings import Settings
from worker.stderr_logging import log_to_stderr

_LOWEST_PRIORITY = 19


def main() -> None:
    log_to_stderr()
    os.nice(_LOWEST_PRIORITY)
    torch.set_num_threads(1)
    settings = Settings.load()
    writer = Writer(take_stdout())
    with PlacementLink(settings.api_url) as link:
        process = MergeProcess(settings, link, writer.write)
        exit_with_parent(MERGE_COMMANDS, process.handle_command)
        process.run()
