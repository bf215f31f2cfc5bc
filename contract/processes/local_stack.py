"""Where a stack on one machine keeps its state, and so where clients look for its address and keys. Knows no stack."""

import os
from pathlib import Path

CREDENTIALS = "credentials.json"  # in the state folder: address and keys, written once the service is there, mode 600


def state_folder() -> Path:
    """$MOTET_STATE_DIR, else $XDG_STATE_HOME/motet, else ~/.local/state/motet."""
    if folder := os.environ.get("MOTET_STATE_DIR"):
        return Path(folder).expanduser().absolute()
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "motet"
