"""The arena: where adapters lie, that nothing leaks between owners, and that copies come back as they went."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.job_config import MODULES
from worker.model.arena import AdapterState, Arena, ArenaFullError, Slot, SlotOwnershipError, rows_for
from worker.model.arena_layout import ALIGN, Layout, Target
from worker.model.cuda import device_arena
from worker.model.cuda.device_arena import DeviceArena
from worker.model.row_optimizer import RowUpdate, update_rows

SIZES = {"q_proj": (20, 36), "k_proj": (20, 18), "v_proj": (20, 18), "o_proj": (36, 20)}
SIZES |= {"gate_proj": (20, 33), "up_proj": (20, 33), "down_proj": (33, 20)}
TARGETS = [Target(f"layers.{layer}.{module}", layer, module, *size) for layer in range(2) for module, size in SIZES.items()]


def _buffers(arena: Arena) -> list[torch.Tensor]:
    return [arena.master, arena.grad, *arena.moments.buffers]


def _fill(arena: Arena, slot: Slot, value: float) -> None:
    for place, buffer in enumerate(_buffers(arena)):
        buffer[slot.used] = value + place


def test_columns_of_a_row_are_apart_aligned_and_all_there() -> None:
    layout = Layout(TARGETS)
    taken = torch.zeros(layout.width, dtype=torch.int64)
    for target in TARGETS:
        a, b = layout.columns[target.name]
        assert a % ALIGN == b % ALIGN == 0
        taken[a : a + target.in_features] += 1
        taken[b : b + target.out_features] += 1
    assert taken.max() == 1
    assert taken.sum() == sum(t.in_features + t.out_features for t in TARGETS)
    groups = layout.layers[1]
    assert [group.width for group in groups.values()] == [72, 20, 66, 20]
    assert layout.columns["layers.1.v_proj"].a == groups["qkv"].a + 2 * groups["qkv"].pitch
    assert layout.columns["layers.1.up_proj"].b == groups["gate_up"].parts[1].b


def test_attach_takes_the_first_run_that_holds_the_rank() -> None:
    arena = Arena(TARGETS, 40)
    first, second, third = (arena.attach(rank, 16) for rank in (8, 9, 1))
    assert [(s.row, s.rows, s.rank, s.scale) for s in (first, second, third)] == [
        (0, 8, 8, 2.0),
        (8, 16, 9, 16 / 9),
        (24, 8, 1, 16.0),
    ]
    arena.detach(second)
    assert arena.attach(8, 8).row == 8
    assert not arena.fits(17)
    with pytest.raises(ArenaFullError, match=r"rank 9 needs 16 contiguous rows; 16 of 40 are free"):
        arena.attach(9, 8)
    assert [arena.attach(8, 8).row for _ in range(2)] == [16, 32]
    assert arena.rows_used == 40


def test_a_detached_slot_leaves_zeros_and_is_refused() -> None:
    arena = Arena(TARGETS, 24)
    gone, stays = arena.attach(8, 8), arena.attach(8, 8)
    _fill(arena, gone, 1.0)
    _fill(arena, stays, 5.0)
    arena.detach(gone)
    for buffer in _buffers(arena):
        assert not buffer[gone.stored].any()
        assert buffer[stays.used].all()
    for use in (arena.detach, arena.snapshot, arena.weights):
        with pytest.raises(ValueError, match="not attached"):
            use(gone)
    with pytest.raises(ValueError, match="rank is 0"):
        arena.attach(0, 8)


def test_a_snapshot_is_a_copy_and_comes_back_elsewhere() -> None:
    arena = Arena(TARGETS, 32)
    one, other = arena.attach(5, 10), arena.attach(5, 10)
    _fill(arena, one, 1.0)
    state = arena.snapshot(one)
    _fill(arena, one, 9.0)
    arena.grad[other.used] = 3.0
    arena.restore(other, state)
    assert (arena.master[other.used] == 1.0).all()
    assert (arena.moments.buffers[0][other.used] == 3.0).all()
    assert (arena.moments.buffers[1][other.used] == 4.0).all()
    assert not arena.grad[other.stored].any()
    arena.restore(other, AdapterState(state.weights))
    assert not arena.moments.buffers[0][other.stored].any()
    assert arena.snapshot(one, moments=False).exp_avg is None
    with pytest.raises(ValueError, match="shape"):
        arena.restore(arena.attach(6, 6), state)


def test_the_gradients_squares_move_with_their_adapter_and_are_left_to_nobody() -> None:
    arena = DeviceArena(TARGETS, 44, "cpu", torch.float32)

    def noted(slot: Slot) -> torch.Tensor:
        """[layers, places] of the adapter's sums."""
        squares = arena.gradient.squares
        assert squares is not None
        assert squares.shape == (2, arena.rows // 8, arena.layout.width // 32)
        return squares[:, slot.row // 8]

    slots = [arena.attach(rank, rank) for rank in (8, 20, 5)]
    for place, slot in enumerate(slots):
        noted(slot).copy_(torch.arange(noted(slot).numel()).view_as(noted(slot)) + 1000.0 * (place + 1))
    kept = [noted(slot).clone() for slot in slots]
    arena.detach(slots[0])
    arena.grow(101)
    arena.compact()
    arena.shrink(3)
    assert slots[1].row == 0
    assert torch.equal(noted(slots[1]), kept[1])
    assert torch.equal(noted(slots[2]), kept[2])
    arena.detach(slots[1])
    arena.clear_gradient(slots[2])
    assert not arena.squares.any()


def test_a_base_whose_rows_kernels_cannot_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_arena, "WIDEST", 100)
    with pytest.raises(ValueError, match=r"numbers a rank; kernels address 100 at most"):
        DeviceArena(TARGETS, 8, "cpu", torch.float32)


def test_growing_keeps_places_and_contents() -> None:
    arena = Arena(TARGETS, 8)
    slot = arena.attach(8, 8)
    _fill(arena, slot, 1.0)
    before = arena.snapshot(slot)
    arena.grow(24)
    assert arena.rows == 24
    assert torch.equal(arena.snapshot(slot).weights, before.weights)
    assert arena.attach(16, 8).row == 8
    with pytest.raises(ValueError, match="cannot grow to 16"):
        arena.grow(16)


def test_weights_are_named_and_shaped_as_peft_does() -> None:
    arena = Arena(TARGETS, 8)
    slot = arena.attach(3, 3)
    weights = arena.weights(slot)
    assert list(weights) == [target.name for target in TARGETS]
    for target in TARGETS:
        a, b = weights[target.name]
        assert (tuple(a.shape), tuple(b.shape)) == ((3, target.in_features), (target.out_features, 3))
        b[1, 2] = 7.0
        assert arena.master[slot.row + 2, arena.layout.columns[target.name].b + 1] == 7.0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=30))
def test_any_coming_and_going_keeps_owners_apart(moves: list[tuple[bool, int]]) -> None:
    arena = Arena(TARGETS[:7], 64)
    held: dict[Slot, float] = {}
    for number, (come, size) in enumerate(moves, start=1):
        if come and arena.fits(size):
            slot = arena.attach(size, 1.0)
            assert not any(buffer[slot.stored].any() for buffer in _buffers(arena))
            held[slot] = float(number)
            _fill(arena, slot, held[slot])
        elif come:
            with pytest.raises(ArenaFullError):
                arena.attach(size, 1.0)
        elif held:
            slot = list(held)[size % len(held)]
            arena.detach(slot)
            del held[slot]
        assert arena.rows_used == sum(rows_for(slot.rank) for slot in held)
        for slot, value in held.items():
            assert (arena.master[slot.used] == value).all()
            assert not arena.master[slot.row + slot.rank : slot.row + slot.rows].any()


def _learn(arena: Arena, slot: Slot, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        arena.grad[slot.used] = torch.randn(arena.grad[slot.used].shape, generator=generator) ** 3
        update_rows(arena, RowUpdate(slot, 1e-2, 0.0, step, 1e9))


def test_eight_bit_moments_take_a_quarter_and_follow_the_full_ones() -> None:
    plain, eight_bit = Arena(TARGETS, 16), Arena(TARGETS, 16, eight_bit=True)
    assert eight_bit.moments.bytes_per_row < 0.27 * plain.moments.bytes_per_row
    slots = [arena.attach(6, 6) for arena in (plain, eight_bit)]
    for arena, slot in zip((plain, eight_bit), slots, strict=True):
        _learn(arena, slot, range(1, 20))
    for got, want in zip(eight_bit.moments.read(slots[1].used), plain.moments.read(slots[0].used), strict=True):
        assert (got - want).norm() / want.norm() < 0.06
    moved, wanted = eight_bit.master[slots[1].used], plain.master[slots[0].used]
    assert (moved - wanted).norm() / wanted.norm() < 0.1
    assert not eight_bit.master[8:].any()


def test_eight_bit_moments_come_back_from_a_snapshot_to_the_same_codes() -> None:
    arena = Arena(TARGETS, 32, eight_bit=True)
    one, other = arena.attach(5, 5), arena.attach(5, 5)
    _learn(arena, one, range(1, 6))
    arena.restore(other, arena.snapshot(one))
    for codes in arena.moments.buffers[:2]:
        assert torch.equal(codes[other.used], codes[one.used])
    for scales in arena.moments.buffers[2:]:
        torch.testing.assert_close(scales[other.used], scales[one.used], rtol=1e-6, atol=0.0)
    arena.grow(48)
    assert arena.moments.buffers[0][one.used].any()
    arena.detach(one)
    assert not arena.moments.read(one.stored)[0].any()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.sets(st.integers(0, 7)), st.booleans())
def test_a_compacted_arena_keeps_contents_and_gives_back_the_rest(ranks: list[int], leaving: set[int], eight_bit: bool) -> None:
    arena = Arena(TARGETS, 8, eight_bit=eight_bit)
    slots = []
    for number, rank in enumerate(ranks):
        if not arena.fits(rank):
            arena.grow(arena.rows + rows_for(rank))
        slots.append(arena.attach(rank, 1.0))
        _learn(arena, slots[-1], range(1 + number, 2 + number))
    before = {slot: arena.snapshot(slot) for place, slot in enumerate(slots) if place not in leaving}
    for place, slot in enumerate(slots):
        if place in leaving:
            arena.detach(slot)
    rows = arena.rows
    given_back = arena.shrink()
    kept = max(8, arena.rows_used)
    assert (arena.rows, given_back) == (kept, rows - kept)
    assert {len(buffer) for buffer in _buffers(arena)} == {kept}
    assert [slot.row for slot in arena.slots] == [sum(s.rows for s in arena.slots[:at]) for at in range(len(arena.slots))]
    for slot, state in before.items():
        now = arena.snapshot(slot)
        assert torch.equal(now.weights, state.weights)
        assert torch.equal(now.exp_avg, state.exp_avg)
        assert torch.equal(now.exp_avg_sq, state.exp_avg_sq)
        assert not arena.master[slot.row + slot.rank : slot.row + slot.rows].any()
    assert arena.shrink() == 0


def test_rows_that_are_shuffled_under_a_slot_are_refused():
    """Whether its bookkeeping or the rows themselves were moved: nothing is read or written for it."""
    arena = Arena([Target(f"layers.0.{module}", 0, module, 20, 20) for module in MODULES], 24)
    one, other = arena.attach(8, 8), arena.attach(4, 4)
    before = arena.snapshot(one)
    one.row, other.row = other.row, one.row
    for act in (arena.snapshot, arena.weights, arena.detach, lambda slot: arena.restore(slot, before)):
        with pytest.raises(SlotOwnershipError, match="rows 8 to 15 of the arena are not all of one slot"):
            act(one)
    one.row, other.row = other.row, one.row
    assert torch.equal(arena.snapshot(one).weights, before.weights)
    places = [*range(8, 16), *range(8), *range(16, 24)]
    arena._replace(lambda buffer: buffer[places])
    for slot in (one, other):
        with pytest.raises(SlotOwnershipError):
            arena.snapshot(slot)
    arena._replace(lambda buffer: buffer[places])
    arena.detach(one)
    arena.compact()
    arena.shrink()
    arena.grow(32)
    assert arena.snapshot(other).weights.shape[0] == 4, "what the arena moves itself stays its own"
    third = arena.attach(8, 8)
    assert third.slot_id not in (one.slot_id, other.slot_id)


def test_a_shrinking_arena_keeps_the_spare_rows_and_moves_nothing_for_them() -> None:
    arena = Arena(TARGETS, 40)
    one, other = arena.attach(8, 8), arena.attach(8, 8)
    arena.detach(one)
    before = arena.master.data_ptr()
    assert arena.shrink(spare=32) == 0
    assert (arena.master.data_ptr(), arena.rows, other.row) == (before, 40, 8)
    assert arena.shrink(spare=16) == 16
    assert (arena.rows, other.row) == (24, 0)
