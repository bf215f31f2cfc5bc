"""Reads a model folder's configuration. Knows no weights.

A configuration's class checks the name of its activation. For that it imports transformers' activations, and these import a
module of kernels from the hub for one decorator. That module imports all that any transformers model may need, torch's compiler
and torch.distributed among it: 1.5 s of CPU time for an executor's first base. Where the package `kernels` is not installed,
the decorator changes nothing, and nothing here runs transformers' activations. So a stand-in with that decorator takes the
module's place while the activations are imported; whoever needs the module later imports the real one.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig

from worker.model.families import UnsupportedModelError

# what transformers raises for fields that are missing, of another type or out of range
_UNREADABLE = (StrictDataclassError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_HUB_KERNELS = "transformers.integrations.hub_kernels"


def read_config(source: Path | str) -> PreTrainedConfig:
    """The configuration of a model folder, read without remote code. Raises OSError and UnsupportedModelError."""
    try:
        return AutoConfig.from_pretrained(source, trust_remote_code=False)
    except _UNREADABLE as error:
        raise UnsupportedModelError(f"config.json is no configuration of a model: {type(error).__name__}: {error}") from None


def _use_kernel_forward_from_hub(name: str) -> Callable[[type], type]:
    """Of an activation: keeps its class as it is."""
    return lambda activation: activation


@contextmanager
def _without_hub_kernels() -> Iterator[None]:
    """Has no effect once the module is there: other parts of transformers need all of it."""
    if _HUB_KERNELS in sys.modules:
        yield
        return
    replacement = ModuleType(_HUB_KERNELS)
    replacement.use_kernel_forward_from_hub = _use_kernel_forward_from_hub  # type: ignore[attr-defined]
    sys.modules[_HUB_KERNELS] = replacement
    try:
        yield
    finally:
        del sys.modules[_HUB_KERNELS]


try:
    with _without_hub_kernels():
        import transformers.activations
except ImportError:  # a release whose activations want more of that module: it is imported with them, as slowly as it is
    import transformers.activations  # noqa: F401
