"""This host's name as a valid node name. Knows no settings."""

import re
import socket


def host_name() -> str:
    """The default name of a node, from the hostname."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")[:63] or "worker"
