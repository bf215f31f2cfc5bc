"""This host's name, fit to be a node's. Knows no settings."""

import re
import socket


def host_name() -> str:
    """What a node is called that was given no name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")[:63] or "worker"
