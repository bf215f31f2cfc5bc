"""On a GPU: after kernels were compiled ahead, a training process compiles none."""

import json
from pathlib import Path

import pytest
import torch

from tests.worker.compilation.fresh_process import run, write_base
from worker.compilation.compile_main import CompileOrder
from worker.compilation.needed_kernels import pass_kinds

pytestmark = pytest.mark.gpu

RANKS, DROPOUTS = (16, 24, 64, 128), (False, True)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_no_kernel_is_compiled_while_jobs_train(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    base = write_base(tmp_path / "base", family)
    kinds = tuple(pass_kinds(RANKS, DROPOUTS))
    order = CompileOrder(source=base, capability=torch.cuda.get_device_capability(), kinds=kinds, eight_bit=False)
    run("-m", "worker.compilation", given=order.model_dump_json(), CUDA_VISIBLE_DEVICES="")
    said = json.loads(run("-m", "tests.worker.compilation.watched_training", str(base), json.dumps(RANKS)))
    assert said["found"] > 40, said
    assert said["compiled"] == [], said
    assert said["built"] == [], said
