"""A number of GPUs in words. On a node without GPUs a CPU slot stands in for one, and counts as one everywhere. Pure."""

CPU = "cpu"  # the device type of a CPU slot


def gpu_count(number: int, device_type: str) -> str:
    """`2 x H100`, `1 CPU slot`."""
    if device_type.lower() == CPU:
        return f"{number} CPU slot{'' if number == 1 else 's'}"
    return f"{number} x {device_type}"
