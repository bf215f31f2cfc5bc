"""Makes an environment of its own that holds vLLM, for tests/worker/adapters/test_vllm_loads.py; about 4 GB, some minutes.

    python -m tests.worker.adapters.vllm_environment FOLDER
    MOTET_TEST_VLLM=FOLDER/bin/python pytest -m slow tests/worker/adapters/test_vllm_loads.py

vLLM comes without what only a GPU uses (kernels, CUDA's Python packages), and over the torch of constraints.txt: the checks of
adapters are plain Python. Its other requirements are those of its own metadata.
"""

import re
import subprocess
import sys
import venv
from pathlib import Path

VERSION = "0.33.0"
_ROOT = Path(__file__).parents[3]
_ON_GPUS = {
    *("torchaudio", "torchvision", "torchcodec", "pynvvideocodec", "flashinfer-python", "tilelang", "nvtx", "quack-kernels"),
    *("nvidia-cudnn-frontend", "nvidia-cutlass-dsl", "fastsafetensors", "instanttensor", "tokenspeed-mla", "humming-kernels"),
}
_OURS = {"torch"}  # pinned by constraints.txt
_ANY_VERSION = {"certifi"}  # its newest may not be published everywhere yet
_SAY = "from importlib.metadata import requires; print(*requires('vllm'), sep='\\n')"


def make(folder: Path) -> Path:
    """The environment's Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    _install(python, "--no-deps", f"vllm=={VERSION}")
    said = subprocess.run([python, "-c", _SAY], check=True, capture_output=True, text=True).stdout.splitlines()
    torch = next(line for line in (_ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    _install(python, torch, *needed(said))
    return python


def needed(requirements: list[str]) -> list[str]:
    """The requirements that reading adapters has, of all of vLLM's."""
    found = []
    for line in requirements:
        name = re.match(r"[A-Za-z0-9._-]+", line)
        if name is None or "extra ==" in line or (low := name.group().lower()) in _ON_GPUS | _OURS:
            continue
        found.append(low if low in _ANY_VERSION else line)
    return found


def _install(python: Path, *what: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "--quiet", *what], check=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python -m {__spec__.name} FOLDER")
    print(make(Path(sys.argv[1]).absolute()))
