"""A base sharded over ranks, each a process: every rank computes what it computes over a whole base, whatever the others do."""

import os
import signal
from collections.abc import Iterator

import pytest
import torch

from tests.worker.model.shard_ranks import Case, Ranks, reference
from worker.model.sharding.weight_shards import BACKWARD, FORWARD, WeightShards, layer_unit

UNEVEN = (((9, 4), (3,)), (), ((5,),), ((2, 2), (8,), (6, 1)))  # passes of four ranks, in lengths of rows
PAIR = UNEVEN[2:]


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    ranks = Ranks(4)
    yield ranks
    ranks.close()


def compared(ranks: Ranks, case: Case) -> None:
    for rank, seen in enumerate(ranks.run(case)):
        assert seen.refusal is None
        wanted = reference(case, rank)
        assert seen.losses == wanted.losses
        assert seen.gradient is not None
        assert wanted.gradient is not None
        assert torch.equal(seen.gradient, wanted.gradient)
        assert bool(wanted.gradient.any()) == bool(case.passes[rank])
        assert seen.weights is not None
        assert wanted.weights is not None
        assert torch.equal(seen.weights, wanted.weights)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case("llama3_rope", PAIR, (0, 1, 2, 3, 4), ends=True), id="all"),
        pytest.param(Case("llama3_rope", PAIR, (0, 1, 2, 3, 4), ends=True, recompute=True), id="recomputed"),
        pytest.param(Case("llama_biases", PAIR, (1, 2, 4)), id="partly, with biases"),
        pytest.param(Case("qwen3", PAIR, (2,), alone=True), id="one layer"),
        pytest.param(Case("qwen2", PAIR, (0, 1, 2, 3, 4)), id="tied"),
        pytest.param(Case("olmo2", PAIR, (0, 2, 3), recompute=True), id="olmo2"),
        pytest.param(Case("phi3_part", PAIR, (0, 1, 2, 3, 4), ends=True), id="joined"),
        pytest.param(Case("gemma2", PAIR, (0, 1), depth=2, recompute=True), id="gemma2"),
        pytest.param(Case("qwen3", PAIR, (0, 1, 2, 3, 4), ends=True, precision="nf4_double"), id="nf4_double"),
        pytest.param(Case("qwen3", PAIR, (0, 1, 3, 4), precision="nf4"), id="nf4"),
        pytest.param(Case("qwen3", PAIR, (0, 2, 3, 4), precision="fp8"), id="fp8, emulated"),
    ],
)
def test_two_ranks_compute_what_one_process_does(two, case):
    compared(two, case)


@pytest.mark.parametrize("recompute", [False, True])
def test_four_ranks_with_uneven_passes_compute_what_one_process_does(four, recompute):
    """The second has none, and still brings its shards."""
    compared(four, Case("llama3_rope", UNEVEN, (0, 1, 2, 3, 4), ends=True, recompute=recompute, alone=True))


def test_a_rank_holds_its_part_and_two_buffers_and_nf4_gathers_codes(four):
    whole = {}
    for precision in ("bf16", "nf4"):
        case = Case("llama3_rope", ((), (), (), ()), tuple(range(12)), depth=12, precision=precision)
        backbone_bytes = {seen.held_bytes for seen in four.run(case)}
        assert len(backbone_bytes) == 1
        resident = Case("llama3_rope", ((), (), (), ()), (0,), depth=12, precision=precision)
        (held,), (almost,) = backbone_bytes, {seen.held_bytes for seen in four.run(resident)}
        layer = (almost - held) / (11 - 11 / 4 - 1)  # eleven layers less their quarters, and a second buffer
        whole[precision] = layer
    assert 5 < whole["bf16"] / whole["nf4"] < 9, "4 bits and a scale for 32"


def test_each_layer_is_gathered_once_a_direction_and_the_turning_point_is_free(two):
    """A training pass over 7 units gathers 7 forward, and backward all layers but the one that is still there."""
    empty, one = Case("llama3_rope", ((), ()), (0, 1, 2, 3, 4), ends=True), ((7,),)
    assert [seen.gathers for seen in two.run(empty)] == [0, 0]
    for passes in ((one, ()), ((), one)):
        evaluation, training = 7, 7 + 4
        prefetched = 1  # backward's end brings the embedding, for the next pass
        found = [seen.gathers for seen in two.run(Case("llama3_rope", passes, (0, 1, 2, 3, 4), ends=True))]
        assert found == [evaluation + training + prefetched] * 2


def test_while_resident_layers_compute_the_buffer_before_them_is_filled():
    """Layers 1, 2, 4 and 5 of 6 are sharded: the layers whose gathers each use begins."""
    shards, begun = WeightShards(0, 1, torch.device("cpu")), list[str | None]()
    for layer in (1, 2, 4, 5):
        shards.add(layer_unit(layer), [torch.zeros(8)], lambda whole, first, starts: None)
    shards.allocate()

    class Collectives:
        def gather(self, whole, part):
            begun.append(shards._holds[whole.data_ptr() != shards._buffers[0].data_ptr()])
            return lambda: None

    shards.collectives = Collectives()

    def begun_by(layers, direction) -> dict[int, list[int]]:
        found = {}
        for layer in layers:
            begun.clear()
            shards.use(layer_unit(layer), direction)
            found[layer] = [int(unit.split()[1]) for unit in begun]
        return found

    for first in ([1, 2], []):  # a pass begins with what the last one ended with
        assert begun_by(range(6), FORWARD) == {0: [], 1: first, 2: [4], 3: [5], 4: [], 5: []}
        assert begun_by(range(5, -1, -1), BACKWARD) == {5: [], 4: [2], 3: [1], 2: [], 1: [], 0: []}


def test_a_rank_that_ends_fails_the_others_at_once():
    ranks = Ranks(2)
    try:
        assert [seen.refusal for seen in ranks.run(Case("llama3_rope", PAIR, (0, 1)))] == [None, None]
        os.kill(ranks.processes[1].pid, signal.SIGKILL)
        ranks.processes[1].join()
        ranks.begin_on(0, Case("llama3_rope", PAIR, (0, 1, 2, 3, 4)))
        assert "agree" in (ranks.answer(0).refusal or "")
    finally:
        ranks.close()
