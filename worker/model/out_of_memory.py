"""Recognises out-of-memory errors of every allocator that a pass meets. Knows no models."""

import torch

# Messages of allocators without an exception of their own: PyTorch's on a CPU; the driver's, also in Triton; cuBLAS' workspace;
# NCCL's, whose memory ranks share.
_MESSAGES = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "ncclMemAlloc failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this exception says that an allocation failed, on a device or in main memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)
