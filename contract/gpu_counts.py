"""A number of GPUs in words. On a node without GPUs a CPU slot stands in for one, and counts as one everywhere. Pure."""

from collections.abc import Iterable

CPU = "cpu"  # the device type of a CPU slot


def gpu_count(number: int, device_type: str) -> str:
    """`2 x H100`, `1 CPU slot`."""
    if device_type.lower() == CPU:
        return f"{number} CPU slot{'' if number == 1 else 's'}"
    return f"{number} x {device_type}"


def device_word(types: Iterable[str | None]) -> str:
    """What one of the devices is called: `CPU slot` if all of them are, else `GPU`; for headings and sentences."""
    kinds = {kind.lower() for kind in types if kind is not None}
    return "CPU slot" if kinds == {CPU} else "GPU"


def devices(number: float, word: str) -> str:
    """`1 GPU`, `2 CPU slots`."""
    return f"{number:g} {word}{'' if number == 1 else 's'}"
