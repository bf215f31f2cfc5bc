"""The trainer on a GPU against the plain one in float64: losses, gradients, updates, neighbours, a growing arena."""

from dataclasses import replace

import pytest
import torch

from tests.worker.model.device_case import (
    RANKS,
    device_trainer,
    error,
    examples,
    fill_slots,
    gemma2,
    gemma3,
    llama,
    olmo2,
    phi3,
    plain_trainer,
    qwen,
)
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.cuda.batches.label_batch import Labels
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer
from worker.model.cuda.fused_head import head_loss
from worker.model.flat_batch import Dropout, Segment
from worker.model.plain.trainer import OutOfMemory
from worker.model.row_optimizer import RowUpdate, update_rows

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("make", "ranks"),
    [
        (llama, RANKS),
        (qwen, RANKS),
        (llama, (128, 13, 100)),
        (qwen, (256, 16, 130)),
        (gemma2, RANKS),
        (gemma2, (128, 13, 100)),
        (gemma3, RANKS),
        (olmo2, RANKS),
        (olmo2, (128, 13, 100)),
        (phi3, RANKS),
    ],
)
def test_losses_and_gradients_are_no_worse_than_plain_bf16(make: object, ranks: tuple[int, ...]) -> None:
    assert callable(make)
    results = []
    for trainer in (
        plain_trainer(make(), torch.float64, "cpu", 512),
        plain_trainer(make(), torch.bfloat16, "cuda", 512),
        device_trainer(make(), 512),
    ):
        slots = fill_slots(trainer, ranks)
        segments = [Segment(slot, examples(index), 1 / 100) for index, slot in enumerate(slots)]
        losses = torch.stack([loss.total.double().cpu() for loss in trainer.train(segments)])
        grads = torch.cat([trainer.arena.grad[slot.used].double().cpu() for slot in slots])
        evaluated = torch.stack([loss.total.double().cpu() for loss in trainer.evaluate(segments)])
        assert error(evaluated, losses) < 1e-3
        results.append((losses, grads))
    truth, plain, ours = results
    assert error(ours[0], truth[0]) <= 1.5 * error(plain[0], truth[0]) + 1e-4
    assert error(ours[1], truth[1]) <= 1.5 * error(plain[1], truth[1])


def test_micro_batches_add_up_and_an_update_voids_the_gradient() -> None:
    trainer = device_trainer(llama())
    slots = fill_slots(trainer)
    first, second = ([Segment(slot, examples(seed + index), 0.01) for index, slot in enumerate(slots)] for seed in (0, 50))
    trainer.train(first)
    one = trainer.arena.grad[slots[1].used].clone()
    trainer.train(second)
    both = trainer.arena.grad[slots[1].used].clone()
    trainer.update([RowUpdate(slot, 0.0, 0.0, 1, 1e9) for slot in slots])
    trainer.train(second)
    assert error(one + trainer.arena.grad[slots[1].used], both) < 1e-5


def test_an_update_moves_its_own_rows_as_torch_would_and_the_copy_follows() -> None:
    trainer = device_trainer(llama())
    slots = fill_slots(trainer)
    trainer.train([Segment(slot, examples(index), 0.01) for index, slot in enumerate(slots)])
    before = trainer.arena.master.clone()
    parameter = torch.nn.Parameter(before[slots[0].used].clone())
    parameter.grad = trainer.arena.grad[slots[0].used].clone()
    norm = torch.nn.utils.clip_grad_norm_([parameter], 0.01)
    torch.optim.AdamW([parameter], lr=1e-2, weight_decay=0.1).step()
    norms = trainer.update([RowUpdate(slots[0], 1e-2, 0.1, 1, 0.01)])
    assert norms[0].item() == pytest.approx(norm.item(), rel=1e-4)
    assert error(trainer.arena.master[slots[0].used], parameter.detach()) < 5e-6
    assert torch.equal(trainer.arena.master[slots[1].used], before[slots[1].used])
    assert torch.equal(trainer.arena.compute_copy[slots[0].used], trainer.arena.master[slots[0].used].bfloat16())


def test_a_neighbours_nan_reaches_nobody_and_two_runs_have_the_same_bits() -> None:
    trainer = device_trainer(llama())
    slots = fill_slots(trainer)
    segments = [Segment(slot, examples(index), 0.01) for index, slot in enumerate(slots)]
    trainer.train(segments)
    healthy = [trainer.arena.grad[slot.used].clone() for slot in slots]
    trainer.update([RowUpdate(slot, 0.0, 0.0, 1, 1e9) for slot in slots])
    trainer.train(segments)
    assert all(torch.equal(trainer.arena.grad[slot.used], grad) for slot, grad in zip(slots, healthy, strict=True))
    trainer.update([RowUpdate(slot, 0.0, 0.0, 2, 1e9) for slot in slots])
    trainer.arena.master[slots[2].used] = float("nan")
    trainer.arena.touched(slots[2])
    losses = trainer.train(segments)
    assert losses[2].total.isnan()
    for index in (0, 1, 3):
        assert torch.equal(trainer.arena.grad[slots[index].used], healthy[index])


def test_graphs_follow_an_arena_that_grows_and_segments_of_one_slot_are_one() -> None:
    trainer = device_trainer(llama(), rows=40)
    slots = fill_slots(trainer, (16, 24))
    segments = [Segment(slot, examples(index, 3), 0.01) for index, slot in enumerate(slots)]
    whole = [loss.total.item() for loss in trainer.train(segments)]
    grads = [trainer.arena.grad[slot.used].clone() for slot in slots]
    trainer.update([RowUpdate(slot, 0.0, 0.0, 1, 1e9) for slot in slots])
    trainer.arena.grow(200)
    split = [Segment(slots[0], segments[0].examples[:1], 0.01), segments[1], Segment(slots[0], segments[0].examples[1:], 0.01)]
    parts = [loss.total.item() for loss in trainer.train(split)]
    assert parts[0] + parts[2] == pytest.approx(whole[0], rel=1e-3)
    assert parts[1] == pytest.approx(whole[1], rel=1e-3)
    for slot, grad in zip(slots, grads, strict=True):
        assert error(trainer.arena.grad[slot.used], grad) < 0.02


@pytest.mark.parametrize("scale", [1.0, 0.01])  # of the logits: smaller ones tie more often
def test_hits_are_the_argmax_of_the_logits_in_bf16(scale: float) -> None:
    generator = torch.Generator("cuda").manual_seed(3)
    h, head = (torch.randn(size, 64, device="cuda", generator=generator).bfloat16() for size in (700, 40_000))
    h *= scale
    logits = h @ head.t()
    most = logits.topk(2, 1).indices
    tokens = torch.where(torch.arange(700, device="cuda") % 2 == 0, most[:, 0], most[:, 1])
    wanted = (logits.argmax(1) == tokens).float()
    bounds = torch.tensor([0, 0, 300, 700], device="cuda", dtype=torch.int32)
    labels = Labels(tokens, torch.ones(700, device="cuda"), bounds)
    for with_gradient in (False, True):
        _, hits, _ = head_loss(h, head, labels, with_gradient)
        assert hits.tolist() == [0, wanted[:300].sum().item(), wanted[300:].sum().item()]


def test_checkpointing_gives_the_same_gradient_to_rounding() -> None:
    grads = []
    for checkpoint in (False, True):
        backbone = Backbone.of(llama().to(torch.bfloat16), "cuda")
        arena = DeviceArena(backbone.targets, 128, "cuda", torch.bfloat16)
        trainer = DeviceTrainer(backbone, arena)
        slots = fill_slots(trainer)
        at = arena.grad.data_ptr()
        trainer.train([Segment(slot, examples(index), 0.01) for index, slot in enumerate(slots)], checkpoint)
        assert arena.grad.data_ptr() == at
        grads.append(torch.cat([arena.grad[slot.used] for slot in slots]))
    assert error(grads[1], grads[0]) < 5e-3


def test_a_pass_without_memory_says_so_and_the_step_is_done_anew_in_smaller_ones() -> None:
    trainer = device_trainer(llama())
    slots = fill_slots(trainer)
    small = [Segment(slot, examples(index), 0.01) for index, slot in enumerate(slots)]
    trainer.train(small)
    wanted = [trainer.arena.grad[slot.used].clone() for slot in slots]
    trainer.discard_gradients(slots)
    large = [Segment(slot, examples(index, 400), 0.01) for index, slot in enumerate(slots)]
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**28) / total)
    try:
        with pytest.raises(OutOfMemory, match="out of device memory in a pass of"):
            trainer.train(large)
        trainer.train(small)
        trainer.graph_tokens = 0
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**26) / total)
        halved = torch.stack([loss.total for loss in trainer.evaluate(large)])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert all(torch.equal(trainer.arena.grad[slot.used], grad) for slot, grad in zip(slots, wanted, strict=True))
    assert error(halved, torch.stack([loss.total for loss in trainer.evaluate(large)])) < 1e-3


def test_dropout_is_the_plain_paths_to_the_bit_of_its_mask_and_alike_however_a_step_is_cut() -> None:
    results = []
    for trainer in (plain_trainer(llama(), torch.float64, "cpu"), plain_trainer(llama(), torch.bfloat16, "cuda"),
                    device_trainer(llama())):  # fmt: skip
        slots = fill_slots(trainer)
        drops = [Dropout(0.1 * index, 2**40 + index, 7) for index in range(len(slots))]
        segments = [Segment(slot, examples(index, 3), 0.01, drops[index]) for index, slot in enumerate(slots)]
        losses = torch.stack([loss.total.double().cpu() for loss in trainer.train(segments)])
        results.append((losses, torch.cat([trainer.arena.grad[slot.used].double().cpu() for slot in slots])))
    truth, plain, ours = results
    assert error(ours[0], truth[0]) <= 1.5 * error(plain[0], truth[0]) + 1e-4
    assert error(ours[1], truth[1]) <= 1.5 * error(plain[1], truth[1])
    trainer.discard_gradients(slots)
    for first, last in ((0, 1), (1, 3)):
        parts = [replace(s, examples=s.examples[first:last], dropout=replace(s.dropout, first=first)) for s in segments]
        trainer.train(parts)
    cut = torch.cat([trainer.arena.grad[slot.used].double().cpu() for slot in slots])
    assert error(cut, ours[1]) < 5e-3


def test_eight_bit_moments_are_as_near_to_exact_ones_as_the_plain_paths() -> None:
    """Codes next to an edge may differ from plain PyTorch's (tests/kernels/test_triton_moments.py), and another code moves a
    weight by as much as coding itself does: both paths are measured against moments that are not coded."""
    backbone = Backbone.of(llama().to(torch.bfloat16), "cuda")

    def moved(arena: Arena) -> list[torch.Tensor]:
        slot = arena.attach(8, 16.0)
        generator = torch.Generator().manual_seed(0)
        for step in range(1, 6):
            arena.grad[slot.used] = torch.randn(arena.grad[slot.used].shape, generator=generator).to(arena.grad.device)
            update = RowUpdate(slot, 1e-3, 0.0, step, 1e9)
            if isinstance(arena, DeviceArena):
                arena.slots_with_gradient.add(slot)
                DeviceTrainer(backbone, arena).update([update])
            else:
                update_rows(arena, update)
        return [arena.master[slot.used].cpu(), *(part.cpu() for part in arena.moments.read(slot.used))]

    exact = moved(Arena(backbone.targets, 16))
    plain = moved(Arena(backbone.targets, 16, eight_bit=True))
    fused = moved(DeviceArena(backbone.targets, 16, "cuda", torch.bfloat16, eight_bit=True))
    for got, want, truth in zip(fused, plain, exact, strict=True):
        assert error(got, truth) < 1.02 * error(want, truth)
        assert error(got, want) < 0.2 * error(want, truth)
