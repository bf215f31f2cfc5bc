"""Makes nf4_golden.safetensors: matrices, and what the real bitsandbytes makes of them on a CPU. Where it is installed:

    python -m tests.kernels.nf4_golden          # compare with the file that is there
    python -m tests.kernels.nf4_golden --write  # write it anew

bitsandbytes is not among what the tests need: its wheel is 43 MB of CUDA libraries.
"""

import hashlib
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

FILE = Path(__file__).with_suffix(".safetensors")
KINDS = {"nf4": False, "nf4_double": True}


def matrices() -> dict[str, Tensor]:
    """Whole blocks, a short last block, an odd count, rows of zero, ties between levels, bf16, more than 256 scales."""
    generator = torch.Generator().manual_seed(20260101)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    ties = (normal(8, 64) * 8).round() / 8
    ties[3] = 0
    return {
        "whole": 0.02 * normal(24, 64),
        "short": normal(12, 46),
        "odd": 3 * normal(37, 45),
        "ties": ties,
        "bf16": normal(16, 72).bfloat16(),
        "large": (normal(131, 260) * normal(131, 1) ** 2).bfloat16(),
    }


def digest(dense: Tensor) -> str:
    """sha256 of a matrix's bytes."""
    return hashlib.sha256(dense.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def read() -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors, metadata) of the file."""
    with safe_open(FILE, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118 - it is no dict


def made() -> tuple[dict[str, Tensor], dict[str, str]]:
    """The same from the bitsandbytes that is installed."""
    import bitsandbytes  # noqa: PLC0415 - the tests import this file without it
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit  # noqa: PLC0415

    tensors, said = {}, {"bitsandbytes": bitsandbytes.__version__, "torch": torch.__version__}
    for name, weight in matrices().items():
        tensors[f"{name}.weight"] = weight
        for kind, double in KINDS.items():
            codes, state = quantize_4bit(weight, blocksize=64, compress_statistics=double, quant_type="nf4")
            own = {"codes": codes.view(-1), "scales": state.absmax}
            if double:
                own |= {"outer": state.state2.absmax, "mean": state.offset}
            tensors |= {f"{name}.{kind}.{what}": value for what, value in own.items()}
            said[f"{name}.{kind}"] = digest(dequantize_4bit(codes, state))
    return tensors, said


def main() -> int:
    torch.set_num_threads(1)
    tensors, said = made()
    if "--write" in sys.argv:
        save_file(tensors, FILE, metadata=said)
        return 0
    kept, known = read()
    other = [name for name in tensors if not torch.equal(kept[name], tensors[name])]
    other += [name for name in said if "." in name and said[name] != known[name]]
    print(f"bitsandbytes {said['bitsandbytes']} against the file's {known['bitsandbytes']}: {other or 'the same bits'}")
    return bool(other)


if __name__ == "__main__":
    sys.exit(main())
