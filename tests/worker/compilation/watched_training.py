"""A program: jobs of some ranks train on a GPU, and Triton says what it compiles, and what it finds compiled. Prints both, and
how many modules a C compiler built meanwhile."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from triton import knobs
from triton.runtime import build

from tests.worker.model.device_case import examples
from worker.model.backbone import Backbone
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.flat_batch import Dropout, Segment
from worker.model.row_optimizer import RowUpdate


def main(folder: Path, ranks: list[int]) -> None:
    compiled, found, built = list[str](), list[str](), list[str]()

    def note(*, src: Any, cache_hit: bool, **_: Any) -> None:
        (found if cache_hit else compiled).append(src.name)

    def build_noted(*arguments: Any, **more: Any) -> str:
        built.append(str(arguments[0]))
        return built_by_triton(*arguments, **more)

    built_by_triton, build._build = build._build, build_noted
    knobs.compilation.listener = note  # type: ignore[assignment]
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).to(torch.bfloat16)
    backbone = Backbone.of(model, "cuda")
    trainer = DeviceTrainer(backbone, DeviceArena(backbone.targets, 1024, backbone.device, torch.bfloat16))
    step = 0
    for some in (ranks, ranks[:1], ranks[:2], ranks[1:3], ranks[-1:], ranks[::3]):
        for share in (0.0, 0.1):
            for count in (1, 4, 40):
                step += 1
                slots = [trainer.arena.attach(rank, rank) for rank in some]
                dropout = Dropout(share, 0, step) if share else None
                jobs = [Segment(slot, examples(step, count), dropout=dropout) for slot in slots]
                for _ in range(4):  # the last of which are captured and replayed
                    trainer.train(jobs)
                    trainer.update([RowUpdate(slot, 1e-3, 0.0, 1, 1.0) for slot in slots])
                trainer.evaluate([*(Segment(slot, examples(step, count)) for slot in slots), Segment(None, examples(step))])
                for slot in slots:
                    trainer.arena.detach(slot)
    print(json.dumps({"compiled": compiled, "found": len(found), "built": built}))


main(Path(sys.argv[1]), json.loads(sys.argv[2]))
