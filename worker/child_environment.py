"""What a child's environment has of its parent's. Values alone."""

from collections.abc import Mapping

_SECRETS = ("MOTET_JOIN_TOKEN", "MOTET_WORKER_HOSTS_SECRET", "HF_TOKEN")


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Of a child that starts no rank, registers no node and asks no hub."""
    return {name: value for name, value in environment.items() if name not in _SECRETS}
