"""Main memory that a process may still take. Knows no devices and no torch."""


def available_memory() -> int:
    """Bytes of main memory available to this process: the kernel's figure, or less where a container's limit is lower."""
    with open("/proc/meminfo") as lines:
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return min([free, *_container_headroom()])


def _container_headroom() -> list[int]:
    """Bytes left under the control group's memory limit, if there is one."""
    try:
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as used:
            most, now = limit.read().strip(), int(used.read())
    except OSError:
        return []
    return [] if most == "max" else [max(0, int(most) - now)]
