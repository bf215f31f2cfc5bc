"""What the bits of a worker's processes depend on: versions of packages, and the environment that executors inherit."""

import os
from importlib.metadata import version

from contract.processes import reproducibility

_PACKAGES = ("torch", "transformers", "motet")


def program_versions() -> dict[str, str]:
    """By name. Raises PackageNotFoundError."""
    return {name: version(name) for name in _PACKAGES} | {
        reproducibility.VARIABLE: os.environ.get(reproducibility.VARIABLE, "")
    }
