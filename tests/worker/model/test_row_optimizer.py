"""AdamW over arena rows against torch.optim.AdamW and clip_grad_norm_, and a broken gradient beside healthy ones."""

import pytest
import torch

from worker.model.arena import Arena
from worker.model.arena_layout import Target
from worker.model.row_optimizer import RowUpdate, update_rows

SIZES = {"q_proj": (20, 36), "k_proj": (20, 18), "v_proj": (20, 18), "o_proj": (36, 20)}
SIZES |= {"gate_proj": (20, 33), "up_proj": (20, 33), "down_proj": (33, 20)}
TARGETS = [Target(f"layers.0.{module}", 0, module, *size) for module, size in SIZES.items()]


def _gradient(shape: torch.Size, step: int, size: float) -> torch.Tensor:
    return size * torch.randn(shape, generator=torch.Generator().manual_seed(step))


def _factors(arena: Arena, rows: torch.Tensor) -> list[torch.Tensor]:
    """A and B of every target as views of an adapter's rows."""
    return [factor for pair in arena.layout.split(rows).values() for factor in pair]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-4, 3.0])  # below and above the clip
def test_steps_equal_torch_adamw_per_adapter(dtype: torch.dtype, size: float) -> None:
    arena = Arena(TARGETS, 40, dtype=dtype)
    settings = [(8, 1e-2, 0.0, 1.0), (3, 3e-4, 0.1, 0.5), (16, 1e-1, 0.01, 10.0)]
    slots = [arena.attach(rank, rank) for rank, *_ in settings]
    theirs = []
    for place, (slot, (_, rate, decay, _)) in enumerate(zip(slots, settings, strict=True)):
        arena.master[slot.used] = _gradient(arena.master[slot.used].shape, 1000 + place, 1.0).to(dtype)
        factors = [torch.nn.Parameter(f.clone()) for pair in arena.weights(slot).values() for f in pair]
        theirs.append((factors, torch.optim.AdamW(factors, lr=rate, weight_decay=decay)))
    for step in range(1, 31):
        for place, slot in enumerate(slots):
            rows = _gradient(arena.grad[slot.used].shape, 100 * step + place, size).to(dtype)
            own = _factors(arena, arena.grad[slot.used])
            for factor, mine, view in zip(theirs[place][0], own, _factors(arena, rows), strict=True):
                mine.copy_(view)
                factor.grad = view.clone()
            _, rate, decay, clip = settings[place]
            norm = torch.nn.utils.clip_grad_norm_(theirs[place][0], clip)
            theirs[place][1].step()
            norm_of_ours = update_rows(arena, RowUpdate(slot, rate, decay, step, clip))
            torch.testing.assert_close(norm_of_ours, norm, rtol=1e-6, atol=0.0)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    for slot, (factors, _) in zip(slots, theirs, strict=True):
        ours = [f for pair in arena.weights(slot).values() for f in pair]
        for tensor, factor in zip(ours, factors, strict=True):
            torch.testing.assert_close(tensor, factor.detach(), rtol=tolerance, atol=tolerance)
    assert not arena.grad.any()
    assert not arena.master[slots[1].row + 3 : slots[1].row + 8].any()


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_broken_gradient_stays_with_its_adapter(broken: float) -> None:
    arena = Arena(TARGETS, 24)
    sick, healthy = arena.attach(8, 8), arena.attach(8, 8)
    arena.grad[sick.used] = broken
    arena.grad[healthy.used] = 0.1
    untouched = [
        b[healthy.used].clone() for b in (arena.master, arena.grad, arena.moments.buffers[0], arena.moments.buffers[1])
    ]
    update_rows(arena, RowUpdate(sick, 1e-2, 0.1, 1, 1.0))
    assert not arena.master[sick.used].isfinite().any()
    assert not arena.grad[sick.used].any()
    for buffer, before in zip(
        (arena.master, arena.grad, arena.moments.buffers[0], arena.moments.buffers[1]), untouched, strict=True
    ):
        assert torch.equal(buffer[healthy.used], before)


def test_step_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="first update is step 1"):
        RowUpdate(Arena(TARGETS, 8).attach(1, 1), 1e-3, 0.0, 0, 1.0)
