"""A task on a base in NF4, through the executor: it trains, starts elsewhere than in bf16, and is cheaper to hold."""

import torch

from contract.messages.report_messages import BaseEvaluated
from tests.worker.inside import Inside
from worker.replicas.base_loader import load_base

SPACE = {"learning_rate": [1e-2], "rank": [8], "batch_size": [4]}


def test_a_task_trains_on_a_base_in_nf4(fleet, placing, tmp_path):
    spec = {"early_exit": {"policy": "none"}, "training": {"epochs": 1, "max_steps": 6}}
    starts = {}
    for precision in ("bf16", "nf4_double"):
        placement = placing(SPACE, precision=precision, **spec)
        assert placement.base.precision == precision
        (reported,) = Inside(fleet, tmp_path / precision).run(placement)
        assert [event.kind for event in reported.ended.values()] == ["job_completed"]
        curve = reported.curves[0, "val_loss"]
        starts[precision] = reported.of(BaseEvaluated)[0].val_loss
        assert curve[max(curve)] < starts[precision]
    assert 0 < abs(starts["nf4_double"] - starts["bf16"]) < 0.05


def test_the_precision_asked_for_is_the_one_held(tiny_base):
    held = {}
    for precision in ("bf16", "nf4"):
        base = load_base(tiny_base.model_copy(update={"precision": precision}), torch.device("cpu"))
        held[precision] = sum(tensor.nbytes for layer in base.trainer.backbone.layers for tensor in _matrices(layer))
    assert held["nf4"] < held["bf16"] / 7


def _matrices(layer):
    for weight in (layer.w_qkv, layer.w_o, layer.w_gate_up, layer.w_down):
        yield from [weight] if isinstance(weight, torch.Tensor) else weight.tensors()
