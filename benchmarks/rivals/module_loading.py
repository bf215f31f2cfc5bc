"""Loads single modules of another project's checkout by path.

Their packages import at package level what a layer does not need (servers, loggers, 4-bit products, distributed training), so
packages are registered here as bare folders, and what a needed module asks of an absent package is stood in for. What a
checkout (DIR) must hold, and which third-party packages its modules need beyond torch and triton:

- LoRAFusion: lorafusion/ops, lorafusion/utils/common.py; numpy. Stood in for: loguru, megatron.core, its dropout (unused here).
- mLoRA: mlora/model/args.py, mlora/model/modules/{linear,lora,adapter}.py, mlora/backends, mlora/profiler/profiler.py;
  transformers. Stood in for: mlora.utils, as it is where bitsandbytes is absent, and other kinds of adapters.
- Unsloth: unsloth/kernels/{fast_lora,utils,swiglu,geglu}.py; nothing. Stood in for: unsloth_zoo, unsloth.device_type,
  unsloth.bnb_availability, unsloth.kernels.fp8 (of fp8 and 4-bit bases).

A file COMMIT in DIR names the commit where DIR is no checkout.
"""

import importlib
import logging
import subprocess
import sys
import typing
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import typing_extensions
from packaging.version import Version


def _bare(name: str, folder: Path | None = None, **attributes: Any) -> ModuleType:
    """Register a module with these attributes; with a folder a package whose modules lie there, and whose own code does not
    run."""
    module = ModuleType(name)
    module.__path__ = [str(folder)] if folder is not None else []
    module.__dict__.update(attributes)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)
    return module


def _packages(directory: Path, *names: str) -> None:
    for name in names:
        folder = directory.joinpath(*name.split("."))
        if not folder.is_dir():
            raise FileNotFoundError(f"{directory} holds no folder {name.replace('.', '/')}")
        _bare(name, folder)


@cache
def lorafusion(directory: Path) -> tuple[ModuleType, ModuleType, ModuleType]:
    """(its multi-LoRA operators, its table of launch configurations, its product of backward)."""
    _bare("loguru", logger=logging.getLogger("lorafusion"))
    _bare("megatron")
    _bare("megatron.core", parallel_state=None)
    _packages(directory, "lorafusion", "lorafusion.ops", "lorafusion.ops.triton_ops", "lorafusion.utils")
    _bare("lorafusion.ops.triton_ops.dropout", seeded_dropout=None)
    names = ("multi_lora", "triton_ops.config", "triton_ops.fused_multi_lora_dyw_dsa")
    operators, config, product = (importlib.import_module(f"lorafusion.ops.{name}") for name in names)
    return operators, config, product


@cache
def mlora(directory: Path) -> tuple[ModuleType, ModuleType, ModuleType]:
    """(its linear map, its adapters, its description of a batch)."""
    if not hasattr(typing, "override"):  # of Python 3.12
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    _packages(directory, "mlora", "mlora.model", "mlora.model.modules", "mlora.backends", "mlora.profiler")
    _bare(
        "mlora.utils", NoneContexts=nullcontext, is_package_available=lambda *_: False, Linear4bit=type("Linear4bit", (), {}),
        Linear8bitLt=type("Linear8bitLt", (), {}),
    )  # fmt: skip
    for name in ("DoRA", "VeRA"):  # other kinds of adapters, of which there is none
        _bare(f"mlora.model.modules.{name.lower()}", **{name: type(name, (), {})})
    profiler = importlib.import_module("mlora.profiler.profiler")
    for name in ("nvtx_range", "set_backward_tracepoint"):
        setattr(sys.modules["mlora.profiler"], name, getattr(profiler, name))
    backends = sys.modules["mlora.backends"]
    backend = importlib.import_module(f"mlora.backends.{'cuda' if torch.cuda.is_available() else 'cpu'}")
    chosen = backend.CUDABackend() if torch.cuda.is_available() else backend.CPUBackend()
    backends.__dict__.update(
        MPSBackend=importlib.import_module("mlora.backends.mps").MPSBackend, get_backend=lambda: chosen
    )  # fmt: skip
    names = ("mlora.model.modules.linear", "mlora.model.modules.lora", "mlora.model.args")
    linear, lora, args = (importlib.import_module(name) for name in names)
    return linear, lora, args


@cache
def unsloth(directory: Path) -> tuple[ModuleType, ModuleType]:
    """(its autograd functions of LoRA, its SwiGLU)."""
    _bare("unsloth_zoo")
    _bare("unsloth_zoo.utils", Version=Version)
    _packages(directory, "unsloth", "unsloth.kernels")
    _bare(
        "unsloth.device_type", is_hip=lambda: False, get_device_type=lambda: "cuda", DEVICE_TYPE="cuda",
        DEVICE_TYPE_TORCH="cuda", DEVICE_COUNT=torch.cuda.device_count(), ALLOW_PREQUANTIZED_MODELS=False,
    )  # fmt: skip
    _bare("unsloth.bnb_availability", native_kernels_ready=lambda *_: False)
    _bare("unsloth.kernels.fp8", weight_dequant=None, fp8_linear=None)
    return importlib.import_module("unsloth.kernels.fast_lora"), importlib.import_module("unsloth.kernels.swiglu")


def version_of(directory: Path) -> str:
    """The commit of a checkout, as its file COMMIT or git says."""
    named = directory / "COMMIT"
    if named.is_file():
        return named.read_text().strip()[:12]
    if not (directory / ".git").exists():
        return "unknown"
    found = subprocess.run(["git", "-C", str(directory), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return found.stdout.strip()[:12]
