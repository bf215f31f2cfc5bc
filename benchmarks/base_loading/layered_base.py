"""A base model with random weights in several safetensors files, drawn and written a few layers at a time: no device and no
process holds all of it. Says what its bytes add up to. Loads nothing."""

import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.llama_shapes import LlamaShape
from benchmarks.sweep.random_base import begin_base
from worker.model.base_weight_reader import INDEX, shapes_of
from worker.model.families import family_of

LAYERS_A_FILE = 3  # 5 GB of a 70B base, as hubs have them
WRITERS = 16  # files at once
_STORED = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}


def write_layered(shape: LlamaShape, folder: Path, devices: Sequence[torch.device]) -> dict[str, int]:
    """Write the base in bf16 to the new folder `folder`. The sum of the bytes of each tensor, by its name."""
    config = begin_base(shape, folder)
    (folder / "config.json").write_text(json.dumps(config.to_diff_dict() | _STORED))
    files = _by_file(shapes_of(family_of(config), config))
    with ThreadPoolExecutor(WRITERS) as pool:
        jobs = [
            pool.submit(_write, folder / file, shapes, place, devices[place % len(devices)])
            for place, (file, shapes) in enumerate(files.items())
        ]
        sums = {name: total for job in jobs for name, total in job.result().items()}
    places = {name: file for file, shapes in files.items() for name in shapes}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return sums


def _by_file(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, dict[str, tuple[int, ...]]]:
    groups: dict[int, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        layer = name.removeprefix("model.layers.").split(".")[0]
        groups.setdefault(int(layer) // LAYERS_A_FILE if layer.isdigit() else -1, {})[name] = shape
    count = len(groups)
    return {f"model-{place:05}-of-{count:05}.safetensors": group for place, group in enumerate(groups.values(), 1)}


def _write(path: Path, shapes: Mapping[str, tuple[int, ...]], seed: int, device: torch.device) -> dict[str, int]:
    """A safetensors file: the length of its header, the header, and the tensors one behind the other."""
    header, end = dict[str, object](), 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text, sums = json.dumps(header).encode(), dict[str, int]()
    generator = torch.Generator(device).manual_seed(seed)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            tensor = _drawn(shape, generator, device)
            sums[name] = byte_sum(tensor)
            file.write(tensor.cpu().view(torch.uint8).numpy())
    return sums


def _drawn(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16, device=device)
    return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0, 0.02, generator=generator)


def byte_sum(tensor: Tensor) -> int:
    """Of its bytes as they are stored. PyTorch widens them before it adds, hence the parts."""
    parts = tensor.contiguous().reshape(-1).view(torch.uint8).split(2**26)
    return sum(int(part.sum(dtype=torch.int64)) for part in parts)
