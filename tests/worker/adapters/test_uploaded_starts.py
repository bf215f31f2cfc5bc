"""Tasks that start from an adapter of another program: over a base in NF4, for preferences, at high ranks, with rslora."""

import hashlib
import json
import math
from typing import Any

import pytest
import torch
from safetensors.torch import save
from transformers import AutoModelForCausalLM

from contract.messages.adapter_manifest import AdapterFile
from contract.messages.peft_settings import CONFIG_FILE, WEIGHTS_FILE
from contract.messages.placement_messages import WarmStartRef
from contract.messages.report_messages import BaseEvaluated
from tests.worker.inside import Inside
from tests.worker.reported import Reported
from worker.model.backbone import Backbone

pytestmark = pytest.mark.usefixtures("measured_once")

MODULES = ["q_proj", "v_proj", "down_proj"]
STILL = {"learning_rate": [1e-9], "batch_size": [4], "target_modules": [MODULES]}
RANK, SCALE = 4, 2.0
PAIRS = [{"prompt": f"{n} apples", "chosen": f" yes {n}", "rejected": " no"} for n in range(20)]


@pytest.fixture
def started(fleet, placing, tiny_base, tmp_path):
    """Runs a task from an adapter of random weights, as PEFT would save it with these settings; with a rank above RANK its
    further rows are zeros, so that the adapter does the same at every rank of the same scale."""

    def run(rank: int, settings: dict[str, Any], rows: Any = None, **spec: Any) -> Reported:
        targets = Backbone.of(AutoModelForCausalLM.from_pretrained(tiny_base.source)).targets
        random, held = torch.Generator().manual_seed(7), {}
        for target in (one for one in targets if one.module in MODULES):
            a, b = torch.zeros(rank, target.in_features), torch.zeros(target.out_features, rank)
            a[:RANK] = torch.randn(RANK, target.in_features, generator=random) * 0.3
            b[:, :RANK] = torch.randn(target.out_features, RANK, generator=random) * 0.3
            held |= {f"base_model.model.{target.name}.lora_{factor}.weight": one for factor, one in (("A", a), ("B", b))}
        config = {"peft_type": "LORA", "r": rank, "target_modules": MODULES, **settings}
        files = []
        for path, content in ((CONFIG_FILE, json.dumps(config).encode()), (WEIGHTS_FILE, save(held))):
            sha256 = hashlib.sha256(content).hexdigest()
            fleet.objects[sha256] = content
            files.append(AdapterFile(path=path, sha256=sha256, bytes=len(content)))
        space = STILL | {"rank": [rank]} | spec.pop("space", {})
        whole = {"policy": "none", "eval_every": 2, "max_evaluation_share": None}
        placement = placing(
            space, rows, early_exit=whole, training={"max_steps": 2}, warm_start={"adapter_id": "adapter_x"}, **spec
        )
        ref = WarmStartRef(adapter_id="adapter_x", files=files)
        (reported,) = Inside(fleet, tmp_path).run(placement.model_copy(update={"warm_start": ref}))
        assert [event.kind for event in reported.ended.values()] == ["job_completed"] * len(placement.jobs)
        return reported

    return run


def losses(reported: Reported) -> list[float]:
    """Each job's validation loss after two steps that change next to nothing."""
    return [curve[2] for (_, name), curve in sorted(reported.curves.items()) if name == "val_loss"]


def test_rank_and_scaling_of_the_upload_and_of_the_jobs_change_nothing(started):
    narrow = started(RANK, {"lora_alpha": SCALE * RANK})
    (wanted,) = losses(narrow)
    assert abs(narrow.of(BaseEvaluated)[0].val_loss - wanted) > 5e-3, "the adapter does something"
    wide = started(128, {"lora_alpha": SCALE * 128}, space={"rslora": [False, True]})
    assert losses(wide) == pytest.approx([wanted] * 2, abs=2e-5)
    stabilised = started(RANK, {"lora_alpha": SCALE * math.sqrt(RANK), "use_rslora": True}, space={"rslora": [False, True]})
    assert losses(stabilised) == pytest.approx([wanted] * 2, abs=2e-5)


def test_over_a_base_in_nf4_it_does_about_the_same(started):
    whole, rounded = (started(RANK, {"lora_alpha": 8}, precision=precision) for precision in ("bf16", "nf4"))
    changes = [losses(one)[0] - one.of(BaseEvaluated)[0].val_loss for one in (whole, rounded)]
    assert abs(changes[0]) > 5e-3
    assert changes[1] == pytest.approx(changes[0], rel=0.2)
    assert losses(rounded) != losses(whole)


def test_preferences_are_learned_against_it(started):
    """A policy that is its reference prefers nothing: the loss is ln 2."""
    reported = started(RANK, {"lora_alpha": 8}, PAIRS, objective={"type": "dpo"}, space={"beta": [0.1]})
    assert losses(reported) == pytest.approx([math.log(2)], abs=2e-5)
