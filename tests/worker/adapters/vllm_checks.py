"""Holds adapters against vLLM's own checks: run by the Python of vLLM's environment, without a GPU. Knows nothing of ours.

Standard input: {"adapters": [{"parent", "name", "module", "class", "base", "max_rank", "modules"}], "serve": [arguments]}; each
adapter is the folder parent/name, over the model class of vLLM's `module`. The last line of standard output answers: for each
adapter its rank, scale and the shapes of A and B by module, as vLLM's workers would hold them, or the error that refused it.
"""

import asyncio
import importlib
import json
import os
import sys
from typing import Any

os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"

import vllm  # type: ignore[import-not-found]
import vllm.platforms  # type: ignore[import-not-found]
from vllm.platforms.cpu import CpuPlatform  # type: ignore[import-not-found]

# The published wheel is CUDA's and knows no platform where there is no GPU; what is checked here needs none.
vllm.platforms.current_platform = CpuPlatform()

from vllm.config.lora import LoRAConfig  # type: ignore[import-not-found]  # noqa: E402
from vllm.entrypoints.cli.serve import ServeSubcommand  # type: ignore[import-not-found]  # noqa: E402
from vllm.lora.lora_model import LoRAModel  # type: ignore[import-not-found]  # noqa: E402
from vllm.lora.peft_helper import PEFTHelper  # type: ignore[import-not-found]  # noqa: E402
from vllm.plugins.lora_resolvers.filesystem_resolver import FilesystemResolver  # type: ignore[import-not-found]  # noqa: E402
from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]  # noqa: E402


def checked(asked: dict[str, Any]) -> dict[str, Any]:
    """What `vllm.lora.worker_manager` does with an adapter that the filesystem resolver finds, up to its place on a device."""
    found = asyncio.run(FilesystemResolver(asked["parent"]).resolve_lora(asked["base"], asked["name"]))
    if found is None:
        return {"error": "the filesystem resolver finds no adapter of this name and base"}
    model = getattr(importlib.import_module(f"vllm.model_executor.models.{asked['module']}"), asked["class"])
    expected = {"o_proj", "down_proj"}.union(*model.packed_modules_mapping.values())  # those two are not packed
    mapper = model.hf_to_vllm_mapper.get_rename_mapper()
    try:
        helper = PEFTHelper.from_local_dir(found.lora_path, 256)
        helper.validate_legal(LoRAConfig(max_lora_rank=asked["max_rank"], lora_dtype="bfloat16"))
        lora = LoRAModel.from_local_checkpoint(
            found.lora_path,
            expected,
            helper,
            lora_model_id=1,
            device="cpu",
            weights_mapper=mapper,
            skip_prefixes=model.lora_skip_prefixes,
        )
    except ValueError as error:
        return {"error": str(error)}
    shapes = {name: [list(one.lora_a.shape), list(one.lora_b.shape)] for name, one in lora.loras.items()}
    return {"rank": lora.rank, "scale": helper.vllm_lora_scaling_factor, "shapes": shapes, "supports_lora": model.supports_lora}


def served(arguments: list[str]) -> dict[str, Any]:
    """What `vllm serve` understands by these arguments."""
    parser = ServeSubcommand().subparser_init(FlexibleArgumentParser().add_subparsers())
    found = parser.parse_args(arguments)
    return {
        name: getattr(found, name)
        for name in ("model_tag", "enable_lora", "max_lora_rank", "max_loras", "max_cpu_loras", "port")
    }


asked = json.load(sys.stdin)
answer = {"version": vllm.__version__, "adapters": [checked(one) for one in asked["adapters"]], "serve": served(asked["serve"])}
print("\n" + json.dumps(answer))
