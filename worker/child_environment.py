"""What a child's environment has of its parent's. Values alone."""

from collections.abc import Mapping

_SECRETS = ("MOTET_JOIN_TOKEN", "MOTET_WORKER_HOSTS_SECRET")


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Of a child that starts no rank and registers no node."""
    return {name: value for name, value in environment.items() if name not in _SECRETS}
