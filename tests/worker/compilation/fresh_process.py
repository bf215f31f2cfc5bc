"""Code that runs in a process where kernels compile: under the interpreter, which tests turn on without a GPU, they do not."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from transformers import Gemma2Config, Gemma3TextConfig, LlamaConfig, Qwen3Config

from tests.worker.model.device_case import SIZES

ROOT = Path(__file__).parents[3]


def write_base(folder: Path, family: str) -> Path:
    """A base's folder with its configuration and no weights."""
    kind: Any = {"llama": LlamaConfig, "qwen3": Qwen3Config, "gemma2": Gemma2Config, "gemma3": Gemma3TextConfig}[family]
    kind(**SIZES, architectures=["ForCausalLM"]).save_pretrained(folder)
    return folder


def run(*arguments: str, given: str = "", **environment: str) -> str:
    """What `python` with these arguments wrote on its standard output. given: on its standard input."""
    around = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | environment
    done = subprocess.run([sys.executable, *arguments], input=given, capture_output=True, text=True, env=around, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
