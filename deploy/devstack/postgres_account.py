"""Chooses the account that Postgres runs under, since it refuses to run as root. Knows nothing else about Postgres.

An ordinary user starts it directly. Root starts it in a user namespace that maps root to user 1; where namespaces are forbidden
(Docker's default seccomp profile), as the real user 1, who may not enter root's home.
"""

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy.devstack.owned_process import dying_with_owner
from deploy.devstack.stack_errors import StackError

_STRANGER = 1  # "daemon" on every distribution: initdb wants a user id that has a name


@dataclass(frozen=True)
class Account:
    """`owner`: the user id that must own the server's files. `stranger`: that user is not the current one."""

    prefix: tuple[str, ...]
    owner: int
    stranger: bool = False

    def command(self, words: list[str], death_signal: signal.Signals) -> list[str]:
        # in this order: a change of user clears the death signal
        return [*self.prefix, *dying_with_owner(death_signal), *words]

    def give(self, folder: Path) -> None:
        """Make `folder` and its contents belong to the account, if they do not yet."""
        if folder.lstat().st_uid != self.owner:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, self.owner, self.owner, follow_symlinks=False)

    def reaches(self, path: Path) -> bool:
        """Whether the account may enter the folder at `path`."""
        return not self.stranger or _works((*self.prefix, "test", "-x", str(path)))

    def runs(self, program: Path, *words: str) -> bool:
        """Whether the account can run a program, its shared libraries included. Tried for another user only: the current one
        can."""
        return not self.stranger or _works((*self.prefix, str(program), *words))


def choose_account() -> Account:
    if os.geteuid() != 0:
        return Account((), os.geteuid())
    unshare = shutil.which("unshare")
    if unshare is not None:
        namespace = (unshare, "-U", "--map-user=1", "--map-group=1")
        if _works((*namespace, "true")):
            return Account(namespace, 0)
    drop = (*dying_with_owner(signal.SIGINT)[:1], f"--reuid={_STRANGER}", f"--regid={_STRANGER}", "--clear-groups")
    if _works((*drop, "true")):
        return Account(drop, _STRANGER, stranger=True)
    raise StackError(
        "Postgres refuses to run as root, and this system lets root neither open a user namespace nor become another user",
        "run as an ordinary user",
    )


def _works(command: tuple[str, ...]) -> bool:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
