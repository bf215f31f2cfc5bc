"""One child process that cannot outlive the thread that started it. Knows no command and no restart policy.

PR_SET_PDEATHSIG fires when the spawning *thread* ends, so only the main thread may spawn.
"""

import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.devstack.stack_errors import StackError

Process = subprocess.Popen[bytes]


def dying_with_owner(death_signal: signal.Signals) -> list[str]:
    """Command prefix that makes the kernel send `death_signal` to the command once its owner is gone."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise StackError("setpriv is not installed", "install the package util-linux")
    return [setpriv, "--pdeathsig", death_signal.name.removeprefix("SIG")]


def spawn(
    command: Sequence[str],
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
) -> Process:
    """Start `command` in its own session, with stdout and stderr appended to `log` (mode 600)."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("children die with the thread that spawned them: spawn from the main thread")
    log.touch(mode=0o600)
    with log.open("ab") as output:
        return subprocess.Popen(
            list(command),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )


def how_it_ended(code: int) -> str:
    """An exit status as a phrase."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
