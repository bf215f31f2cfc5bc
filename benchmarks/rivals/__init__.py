"""One decoder layer with many adapters, forward and backward: ours beside LoRAFusion, mLoRA and Unsloth, whose operators are
loaded by path from checkouts of their projects. Nothing of theirs is part of this repository."""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # must be chosen before anything imports a kernel
