"""A model folder's configuration, read and trained on by a process that loads nothing else of transformers and torch."""

import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from packaging.version import Version

from tests.worker.model import tiny
from worker.model.families import FAMILIES

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.23"),
    reason="transformers 5.17 imports its models to document a configuration, and torch's compiler with them",
)
COSTLY = {"torch._dynamo", "torch._inductor", "torch.distributed.tensor", "sympy", "accelerate", "transformers.modeling_utils"}
TRAINS = """
import sys
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.plain.trainer import Trainer, probe

backbone = Backbone.load(sys.argv[1])
trainer = Trainer(backbone, Arena(backbone.targets, 16))
slot = trainer.arena.attach(8, alpha=8.0)
for recompute in (False, True):
    assert trainer.activation_bytes(32, 16, recompute) > 0
    trainer.train(probe(32, 16, slot), recompute)
trainer.evaluate(probe(32, 16, slot))
print(*sys.modules)
"""
READS = """
import sys
from pathlib import Path
from worker.model.config_reader import read_config

for folder in sorted(Path(sys.argv[1]).iterdir()):
    print(read_config(folder).model_type, "torch._dynamo" in sys.modules)
from transformers.integrations.hub_kernels import kernelize, use_kernel_forward_from_hub
print(use_kernel_forward_from_hub.__module__)
"""


def _ran(program: str, folder: Path) -> list[str]:
    command = [sys.executable, "-c", program, str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def test_training_loads_no_compiler(tmp_path):
    tiny.model(tiny.configs()["llama"]).save_pretrained(tmp_path)
    loaded = set(_ran(TRAINS, tmp_path))
    assert "worker.model.backbone" in loaded
    assert not loaded & COSTLY


def test_every_family_is_read_without_the_kernels_of_the_hub_which_can_be_imported_later(tmp_path):
    for config in tiny.configs().values():
        config.save_pretrained(tmp_path / config.model_type)
    *said, place = _ran(READS, tmp_path)
    assert said == [word for family in sorted(FAMILIES) for word in (family, "False")]
    assert place == "transformers.integrations.hub_kernels"
