"""The bytes that ranks keep of a unit are those of weights that were stored whole and then cut, and few rows are read twice."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from worker.model.base_weight_reader import UnreadTensor, Weights
from worker.model.peak_memory import peak_bytes
from worker.model.sharding.frozen_tensors import stored, stored_rows, tensors_of, unfilled
from worker.model.sharding.sharded_parts import PartShards
from worker.model.sharding.weight_shards import ALIGNMENT, Sharding, WeightShards, layer_unit

PRECISIONS = ("bf16", "nf4", "nf4_double", "fp8")
# (rows, columns) of the matrices of four maps
SHAPES = {
    "odd": (((77, 60), (13, 60), (13, 60)), ((60, 77),), ((131, 60), (131, 60)), ((60, 131),)),
    "even": (((128, 64), (32, 64), (32, 64)), ((64, 128),), ((192, 64), (192, 64)), ((64, 192),)),
    "scales that are cut": (((300, 260), (20, 260), (20, 260)), ((260, 300),), ((500, 260), (500, 260)), ((260, 500),)),
    "long rows": (((3, 1027), (1, 1027), (1, 1027)), ((1027, 3),), ((5, 1027), (5, 1027)), ((1027, 5),)),
    "less than a block": (((1, 3), (1, 3), (1, 3)), ((3, 1),), ((2, 3), (2, 3)), ((3, 2),)),
}
KEYS = ("w_qkv", "w_o", "w_gate_up", "w_down")
WORLDS = (1, 2, 3, 4, 8, 13)


class Reads:
    """The matrices of a layer, and which of their rows are read."""

    def __init__(
        self, shapes: Sequence[Sequence[tuple[int, int]]], device: str = "cpu", dtype: torch.dtype = torch.bfloat16
    ) -> None:
        generator = torch.Generator().manual_seed(5)
        self.names = {key: [f"{key}.{at}" for at in range(len(some))] for key, some in zip(KEYS, shapes, strict=True)}
        flat = {f"{key}.{at}": one for key, some in zip(KEYS, shapes, strict=True) for at, one in enumerate(some)}
        self.matrices = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in flat.items()}
        self.rows = dict.fromkeys(flat, 0)
        held = {name: UnreadTensor(tuple(one.shape), dtype, self._reading(name)) for name, one in self.matrices.items()}
        self.weights = Weights(held, flat, device, dtype)

    def _reading(self, name: str):
        def read(rows: slice) -> Tensor:
            self.rows[name] += rows.stop - rows.start
            return self.matrices[name][rows]

        return read

    def part(self, rank: int, world: int, precision) -> Tensor:
        parts = PartShards(Sharding(rank, world, frozenset([0])), self.weights, precision)
        parts.linear_maps(0, self.names)
        assert isinstance(parts.gathers, WeightShards)
        return parts.gathers._units[layer_unit(0)].part

    def stored(self, precision) -> list[Tensor]:
        """What stores the layer, made of whole matrices."""
        maps = [stored([self.weights[name] for name in some], precision) for some in self.names.values()]
        return [tensor for one in maps for tensor in tensors_of(one)]


def cut(tensors: Sequence[Tensor], world: int) -> list[Tensor]:
    """Whole tensors one behind the other, in equal parts."""
    padded = []
    for tensor in tensors:
        flat = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
        padded.append(torch.nn.functional.pad(flat, (0, -len(flat) % ALIGNMENT)))
    block = torch.cat(padded)
    return list(torch.nn.functional.pad(block, (0, -len(block) % (world * ALIGNMENT))).chunk(world))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("shapes", SHAPES)
def test_parts_are_those_of_weights_that_were_stored_whole(shapes, precision, device):
    if device != "cpu" and precision == "fp8" and shapes != "even":
        pytest.skip("a GPU has no product of these sizes")
    reads = Reads(SHAPES[shapes], device)
    whole = reads.stored(precision)
    for world in (*WORLDS, 500) if shapes == "scales that are cut" else WORLDS:  # 500: parts of which some are scales alone
        for rank, wanted in enumerate(cut(whole, world)):
            assert torch.equal(reads.part(rank, world, precision).cpu(), wanted), (world, rank)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_parts_of_other_stored_weights_are_too(dtype):
    for precision in PRECISIONS:
        reads = Reads(SHAPES["odd"], dtype=dtype)
        for rank, wanted in enumerate(cut(reads.stored(precision), 4)):
            assert torch.equal(reads.part(rank, 4, precision), wanted)


@pytest.mark.parametrize("shapes", SHAPES)
def test_rows_are_read_once_in_bf16_but_for_those_that_a_cut_goes_through(shapes):
    reads = Reads(SHAPES[shapes])
    for world in WORLDS:
        reads.rows = dict.fromkeys(reads.rows, 0)
        for rank in range(world):
            reads.part(rank, world, "bf16")
        twice = sum(count - len(reads.matrices[name]) for name, count in reads.rows.items())
        assert 0 <= twice < world
        assert all(count >= len(reads.matrices[name]) for name, count in reads.rows.items())


@pytest.mark.parametrize(
    ("precision", "most"),
    [
        ("nf4", {2: 1.06, 4: 1.2, 8: 1.7}),
        ("nf4_double", {2: 1.06, 4: 1.2, 8: 1.7}),
        ("fp8", {2: 1.4, 4: 1.4, 8: 1.7}),
    ],
)
def test_rows_of_codes_are_read_again_only_for_scales_in_another_part(precision, most):
    """most: of a layer's numbers, over all ranks."""
    reads = Reads((((256, 256), (64, 256), (64, 256)), ((256, 256),), ((896, 256), (896, 256)), ((256, 896),)))
    whole = sum(one.numel() for one in reads.matrices.values())
    for world, limit in most.items():
        reads.rows = dict.fromkeys(reads.rows, 0)
        for rank in range(world):
            reads.part(rank, world, precision)
        read = sum(count * reads.matrices[name].shape[1] for name, count in reads.rows.items())
        assert whole <= read <= limit * whole, (world, read / whole)
        assert all(count >= len(reads.matrices[name]) for name, count in reads.rows.items())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_no_more_than_one_matrix_is_in_memory_beside_the_part(precision):
    reads = Reads((((512, 512), (512, 512), (512, 512)), ((512, 512),), ((512, 512), (512, 512)), ((512, 512),)))
    layer = PartShards(None, reads.weights, precision)
    whole = peak_bytes(lambda: layer.linear_maps(0, reads.names), reads.matrices.values())
    stored_bytes = sum(tensor.nbytes for tensor in reads.stored(precision))
    peak = peak_bytes(lambda: reads.part(1, 4, precision), reads.matrices.values()) - stored_bytes  # of the meta device
    one = peak_bytes(lambda: stored_rows(reads.matrices["w_o.0"], precision), reads.matrices.values())
    part = stored_bytes / 4
    assert peak <= 1.1 * part + one
    assert 1.1 * part + one < 0.85 * whole


@pytest.mark.parametrize("precision", PRECISIONS)
def test_weights_without_numbers_have_the_shapes_of_those_with(precision):
    for some in (group for shapes in SHAPES.values() for group in shapes):
        made = stored([torch.randn(shape).to(torch.bfloat16) for shape in some], precision)
        bare = unfilled(some, torch.bfloat16, precision, torch.device("cpu"))
        assert [(one.shape, one.dtype) for one in tensors_of(bare)] == [(one.shape, one.dtype) for one in tensors_of(made)]
        assert all(one.is_meta for one in tensors_of(bare))
        assert bare.shape == made.shape
        assert getattr(bare, "dtype", None) == getattr(made, "dtype", None)
