"""Bases on a GPU that are not held in bf16: NF4 and fp8 under the fused layers."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from grouped_lora.base.fp8 import CAPABILITY, Fp8Weight
from grouped_lora.base.nf4 import Nf4Weight
from torch import Tensor
from transformers import PreTrainedModel

from tests.worker.model.device_case import error, examples, fill_slots, llama, qwen
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.flat_batch import Segment
from worker.model.plain.trainer import Trainer

pytestmark = pytest.mark.gpu


def _coded(backbone: Backbone) -> list[dict[str, Nf4Weight]]:
    return [{name: value for name, value in vars(w).items() if isinstance(value, Nf4Weight)} for w in backbone.layers]


def _step(backbone: Backbone, graph_tokens: int) -> tuple[list[float], Tensor]:
    """Losses and all gradients of two passes."""
    trainer = DeviceTrainer(backbone, DeviceArena(backbone.targets, 128, "cuda", torch.bfloat16))
    trainer.graph_tokens = graph_tokens
    slots = fill_slots(trainer)
    losses = []
    for seed in (0, 50):
        segments = [Segment(slot, examples(seed + place), 0.01) for place, slot in enumerate(slots)]
        losses += [float(loss.total) for loss in trainer.train(segments)]
    return losses, torch.cat([trainer.arena.grad[slot.used] for slot in slots])


@pytest.mark.parametrize("precision", ["nf4", "nf4_double"])
@pytest.mark.parametrize("graph_tokens", [0, 4096])
def test_training_on_nf4_is_that_on_the_decoded_base_bit_for_bit(precision: str, graph_tokens: int) -> None:
    backbone = Backbone.of(llama().to(torch.bfloat16), "cuda", precision)
    coded = zip(backbone.layers, _coded(backbone), strict=True)
    decoded = [replace(weights, **{name: value.dense() for name, value in own.items()}) for weights, own in coded]
    losses, grads = _step(backbone, graph_tokens)
    wanted, want = _step(replace(backbone, layers=tuple(decoded)), graph_tokens)
    assert losses == wanted
    assert torch.equal(grads, want)


@pytest.mark.parametrize("precision", ["nf4", "nf4_double"])
def test_codes_made_on_the_device_and_numbers_decoded_there_are_the_hosts(precision: str) -> None:
    model = llama().to(torch.bfloat16)
    host, device = (_coded(Backbone.of(model, where, precision)) for where in ("cpu", "cuda"))
    for own, there in zip(host, device, strict=True):
        for name, weight in own.items():
            torch.testing.assert_close(there[name].dense().cpu(), weight.dense(), rtol=2**-8, atol=0)
            if precision == "nf4":  # the mean of the scales is summed in another order there
                assert all(torch.equal(a, b.cpu()) for a, b in zip(weight.tensors(), there[name].tensors(), strict=True))
                assert torch.equal(there[name].dense().cpu(), weight.dense())


@pytest.mark.parametrize("graph_tokens", [0, 4096])
@pytest.mark.parametrize("made", [llama, qwen], ids=["llama", "qwen3"])
def test_training_on_fp8_is_as_near_the_exact_products_as_plain_pytorch_in_fp8(
    made: Callable[[], PreTrainedModel], graph_tokens: int
) -> None:
    """Both quantise the same activations; which of two codes a number between them gets differs with its last bit."""
    if torch.cuda.get_device_capability() < CAPABILITY:
        pytest.skip("this GPU multiplies no e4m3")
    backbone = Backbone.of(made().to(torch.bfloat16), "cuda", "fp8")
    losses, grads = _step(backbone, graph_tokens)
    results = []
    for dtype in (torch.float64, torch.bfloat16):
        held = backbone if dtype == torch.bfloat16 else _exact(Backbone.of(made().to(torch.bfloat16).double(), "cpu"), backbone)
        trainer = Trainer(held, Arena(held.targets, 128, held.device))
        slots = fill_slots(trainer)
        totals: list[float] = []
        for seed in (0, 50):
            segments = [Segment(slot, examples(seed + place), 0.01) for place, slot in enumerate(slots)]
            totals += [float(loss.total) for loss in trainer.train(segments)]
        results.append((torch.tensor(totals).double(), torch.cat([trainer.arena.grad[s.used] for s in slots]).double().cpu()))
    (truth, true_grads), (plain, plain_grads) = results
    assert error(torch.tensor(losses).double(), truth) <= 1.5 * error(plain, truth) + 1e-4
    assert error(grads.double().cpu(), true_grads) <= 1.5 * error(plain_grads, true_grads)


def _exact(model: Backbone, coded: Backbone) -> Backbone:
    """A backbone on the host with the numbers that the codes stand for."""
    layers = []
    for weights, own in zip(model.layers, coded.layers, strict=True):
        found = {name: value for name, value in vars(own).items() if isinstance(value, Fp8Weight)}
        assert len(found) == 4
        layers.append(replace(weights, **{name: value.dense().double().cpu() for name, value in found.items()}))
    return replace(model, layers=tuple(layers))
