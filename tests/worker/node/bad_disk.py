"""`python -m worker` on a disk that gives back no weights at the lowest losses."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from worker import executor_main
from worker.__main__ import main
from worker.adapters.job_checkpoint import UnreadableWeights
from worker.adapters.weights_copies import _Kept

_EXECUTOR = "executor"


class BadDisk(subprocess.Popen[bytes]):
    def __init__(self, command: Sequence[str], **options: Any) -> None:
        own = [*command[:-1], "tests.worker.node.bad_disk", _EXECUTOR] if command[-1] == "worker.executor" else command
        super().__init__(own, **options)


def unreadable(self: _Kept) -> Tensor:
    raise UnreadableWeights("a file of weights in MOTET_WORKER_DIR cannot be read back: [Errno 5] Input/output error")


if __name__ == "__main__":
    if sys.argv[1:] == [_EXECUTOR]:
        _Kept.read = unreadable  # type: ignore[method-assign]
        executor_main.main()
    else:
        subprocess.Popen = BadDisk  # type: ignore[misc]
        sys.exit(main())
