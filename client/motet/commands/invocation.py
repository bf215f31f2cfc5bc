"""How the user invokes this command here, so that suggested commands can be copied. Knows nothing else."""

import shutil
import sys
from pathlib import Path


def command() -> str:
    """`motet` if the PATH resolves to the running program, else its path relative to the working folder."""
    own = Path(sys.argv[0]).absolute()
    found = shutil.which("motet")
    if own.name != "motet" or (found is not None and Path(found).resolve() == own.resolve()):
        return "motet"
    return str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own)
