"""NF4 in plain PyTorch: the bits of bitsandbytes, kept in a file (nf4_golden.py), and what holds of any matrix."""

import pytest
import torch
from grouped_lora.base.nf4 import LEVELS, Nf4Weight, quantise

from tests.kernels import nf4_golden

TENSORS, SAID = nf4_golden.read()
NAMES = [name.removesuffix(".weight") for name in TENSORS if name.endswith(".weight")]


@pytest.fixture(autouse=True)
def _one_thread():
    """The mean of all scales is summed in as many parts as there are threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", nf4_golden.KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_codes_scales_and_numbers_are_those_of_bitsandbytes(name: str, kind: str) -> None:
    weight, double = TENSORS[f"{name}.weight"], nf4_golden.KINDS[kind]
    found = quantise(weight, double)
    parts = {"codes": found.codes, "scales": found.scales.values, "outer": found.scales.outer, "mean": found.scales.mean}
    wanted = {what: TENSORS.get(f"{name}.{kind}.{what}") for what in parts}
    assert (wanted["outer"] is not None) == double
    for what, value in parts.items():
        want = wanted[what]
        if want is None or value is None:
            assert want is value, what
        else:
            assert value.dtype == want.dtype
            assert torch.equal(value, want), what
    assert nf4_golden.digest(Nf4Weight((found,), weight.dtype).dense()) == SAID[f"{name}.{kind}"]


@pytest.mark.parametrize("shape", [(64, 64), (7, 129), (1, 3), (40, 96)])
def test_each_number_becomes_the_nearest_level_of_its_block(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape) * torch.rand(()) * 5
    flat, back = weight.double().view(-1), Nf4Weight.of([weight]).dense().double().view(-1)
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    for start in range(0, len(flat), 64):
        own = flat[start : start + 64]
        scale = own.abs().max()
        nearest = (own[:, None] - levels * scale).abs().amin(1)
        torch.testing.assert_close((own - back[start : start + 64]).abs(), nearest, rtol=1e-4, atol=1e-6 * float(scale))


def test_a_number_between_two_levels_becomes_the_lower_one() -> None:
    levels = torch.tensor(LEVELS)
    row = torch.zeros(1, 64)
    row[0, :16] = torch.cat([(levels[:-1] + levels[1:]) / 2, levels[-1:]])
    for weight in (row, row[:, :16]):  # a whole block, and one that is cut short
        assert torch.equal(Nf4Weight.of([weight]).dense()[0, :16], torch.cat([levels[:-1], levels[-1:]]))


def test_the_smallest_numbers_are_read_as_levels_too() -> None:
    weight = 1e-37 * torch.tensor(LEVELS)[None].repeat(1, 5)
    torch.testing.assert_close(Nf4Weight.of([weight]).dense(), weight, rtol=1e-6, atol=0)


def test_scales_that_all_equal_their_mean_have_the_code_of_bitsandbytes() -> None:
    scales = quantise(torch.ones(4, 64), double=True).scales
    assert scales.values.tolist() == [0] * 4
    assert torch.equal(scales.plain(), torch.ones(4))


def test_every_tensor_that_is_kept_is_named() -> None:
    kept = Nf4Weight.of([torch.randn(5, 70)], double=True)
    scales = kept.parts[0].scales
    named = {tensor.data_ptr() for tensor in kept.tensors()}
    assert named == {tensor.data_ptr() for tensor in (kept.parts[0].codes, scales.values, scales.outer, scales.mean)}


def test_matrices_are_quantised_by_themselves_and_lie_below_each_other() -> None:
    parts = [torch.randn(rows, 45) * 10.0**place for place, rows in enumerate((3, 7, 1))]
    joined = Nf4Weight.of(parts, double=True)
    assert joined.shape == (11, 45)
    assert torch.equal(joined.dense(), torch.cat([Nf4Weight.of([part], double=True).dense() for part in parts]))


@pytest.mark.parametrize(("double", "bits"), [(False, 4.5), (True, 4.127)])
def test_bits_of_a_number(double: bool, bits: float) -> None:
    kept = Nf4Weight.of([torch.randn(512, 768)], double)
    size = sum(tensor.nbytes for tensor in kept.tensors())
    assert size * 8 / (512 * 768) == pytest.approx(bits, abs=1e-3)


def test_nothing_but_zeros_stays_zero() -> None:
    for double in (False, True):
        assert not Nf4Weight.of([torch.zeros(5, 70)], double).dense().any()
