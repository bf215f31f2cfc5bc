"""Assumed speeds of GPU types before any measurement: a table, and a default for types that it lacks.

Values only. Sustained training rates, below the data sheets' peaks; the first measured profile replaces them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hardware:
    """Sustained FLOP/s of dense layers, memory bytes/s, and the minimum seconds of a step."""

    flops: float
    bytes_per_second: float
    step_seconds: float


_CPU = Hardware(2e10, 1e10, 2e-3)
_OTHER = Hardware(1.5e14, 1.2e12, 2e-2)  # default for an unknown accelerator
_TYPES = (  # the first name that the type's name contains, in lower case
    ("cpu", _CPU),
    ("h200", Hardware(4.5e14, 4.0e12, 1.5e-2)),
    ("h100", Hardware(4.5e14, 2.8e12, 1.5e-2)),
    ("h800", Hardware(4.5e14, 2.8e12, 1.5e-2)),
    ("b200", Hardware(9.0e14, 6.5e12, 1.5e-2)),
    ("a100", Hardware(1.8e14, 1.5e12, 2e-2)),
    ("l40", Hardware(1.2e14, 7.0e11, 2e-2)),
    ("a10", Hardware(6.0e13, 5.0e11, 2e-2)),
    ("l4", Hardware(5.0e13, 2.5e11, 2e-2)),
    ("4090", Hardware(1.2e14, 8.5e11, 2e-2)),
    ("3090", Hardware(5.0e13, 8.0e11, 2e-2)),
    ("v100", Hardware(6.0e13, 7.5e11, 2e-2)),
    ("t4", Hardware(2.0e13, 2.5e11, 2e-2)),
)


def hardware(gpu: str) -> Hardware:
    """The assumed speeds of a GPU type, by a part of its name ("NVIDIA H100 80GB HBM3", "cpu")."""
    name = gpu.lower()
    return next((what for part, what in _TYPES if part in name), _OTHER)
