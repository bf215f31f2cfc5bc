"""A child whose end its parent does not see for as long as a process of its own traces it: as one that hangs in a driver."""

import ctypes
import os
import threading

from worker.pipe_messages import PlacementEnded, Writer, take_stdout

_PR_SET_PTRACER, _ANY = 0x59616D61, ctypes.c_ulong(-1)
_PTRACE_SEIZE = 0x4206


def main() -> None:
    """Tell the tracer's pid once it traces."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)  # where Yama lets no child trace its parent
    writer = Writer(take_stdout())
    traced, ready = os.getpid(), os.pipe()
    if not (tracer := os.fork()):
        libc.ptrace.argtypes = [ctypes.c_long] * 4
        os.write(ready[1], b"y" if libc.ptrace(_PTRACE_SEIZE, traced, 0, 0) == 0 else b"n")
        threading.Event().wait()
    assert os.read(ready[0], 1) == b"y", "it may not be traced here"
    writer.write(PlacementEnded(placement_id=str(tracer), lost=False))
    threading.Event().wait()


if __name__ == "__main__":
    main()
