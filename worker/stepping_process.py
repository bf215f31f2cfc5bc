"""What a process whose main thread takes training steps asks of Python, the C library and the system."""

import ctypes
import gc
import resource
import sys

# A step that has waited for the device, or for work that needs no interpreter, must not wait as long again for a thread that
# reads rows or writes reports: Python asks that one for it after 5 ms, as long as a short step. This is small beside it.
_SWITCH_SECONDS = 1e-4
_KEPT_BYTES = 2**25  # blocks up to this size stay with the process; the C library allows no more
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8  # numbers of <malloc.h>
_ARENAS = 2  # the main thread's, and one of all others: each keeps as much as its threads ever had at once


def settle() -> None:
    """To be called once everything is imported."""
    gc.collect()
    gc.freeze()  # what is imported stays: no collection, of which captures of graphs make some, need look at it
    sys.setswitchinterval(_SWITCH_SECONDS)
    _keep_freed_blocks()
    # each copy of an adapter that ranks share takes a descriptor, and each that lies in a file for lack of memory
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _keep_freed_blocks() -> None:
    """Ask the C library, where it can (glibc), to keep freed memory instead of giving it back to the kernel after every tensor.

    A step on CPU allocates the same blocks over and over; otherwise the kernel maps and zeroes each one anew, which took a
    tenth of a step.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return
    libc.mallopt(_M_ARENA_MAX, _ARENAS)
    for option, value in ((_M_MMAP_THRESHOLD, _KEPT_BYTES), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 2 * _KEPT_BYTES)):
        libc.mallopt(option, value)
