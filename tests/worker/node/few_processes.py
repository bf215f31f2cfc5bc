"""`python -m worker` on a system that starts no process of the modules that a file names."""

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worker.__main__ import main

REFUSED = Path(os.environ["REFUSED_MODULES"])


class FewProcesses(subprocess.Popen[bytes]):
    def __init__(self, command: Sequence[str], **options: Any) -> None:
        if REFUSED.exists() and set(REFUSED.read_text().split()) & set(command):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        super().__init__(command, **options)


if __name__ == "__main__":
    subprocess.Popen = FewProcesses  # type: ignore[misc]
    sys.exit(main())
