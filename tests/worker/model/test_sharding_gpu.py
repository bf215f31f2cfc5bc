"""A base sharded over two GPUs by NCCL: each rank trains its adapters to the bits that it trains them to over a whole base.

The same kernels read the same weights, which lie in a gather buffer instead of in tensors of their own, so no tolerance is
needed: where bits differ, a pass has read a layer that had not landed, or one that the next gather was overwriting already.
"""

from collections.abc import Iterator

import pytest
import torch

from tests.worker.model.shard_ranks import Case, Ranks, reference

pytestmark = pytest.mark.gpu

UNEVEN = (((150, 90), (40,), (200, 64)), ((64, 33),))  # passes of the two ranks, in lengths of rows
ALL = (0, 1, 2)


@pytest.fixture(scope="module")
def two_gpus() -> Iterator[Ranks]:
    if torch.cuda.device_count() < 2:
        pytest.skip("NOT RUN: a base sharded over two GPUs needs two")
    ranks = Ranks(2, "cuda")
    yield ranks
    ranks.close()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case("fused llama", UNEVEN, ALL, ends=True), id="bf16"),
        pytest.param(Case("fused llama", UNEVEN, ALL, ends=True, late=True), id="bf16, one unmaps first"),
        pytest.param(Case("fused qwen3", UNEVEN, (0, 2), recompute=True), id="bf16, partly, recomputed"),
        pytest.param(Case("fused llama", UNEVEN, ALL, precision="nf4", recompute=True), id="nf4, recomputed"),
        pytest.param(Case("fused llama", UNEVEN, ALL, ends=True, precision="nf4_double"), id="nf4_double"),
        pytest.param(Case("fused llama", UNEVEN, ALL, ends=True, precision="fp8"), id="fp8"),
        pytest.param(Case("fused qwen3", UNEVEN, (0, 2), precision="fp8", recompute=True), id="fp8, partly, recomputed"),
    ],
)
def test_two_gpus_train_what_one_does(two_gpus: Ranks, case: Case) -> None:
    for rank, seen in enumerate(two_gpus.run(case)):
        assert seen.refusal is None
        assert seen.gathers > 0
        assert seen.mapped == (torch.cuda.get_device_capability()[0] >= 9), "before Hopper torch has no such memory"
        wanted = reference(case, rank, "cuda")
        assert seen.losses == wanted.losses
        for got, want in ((seen.gradient, wanted.gradient), (seen.weights, wanted.weights)):
            assert got is not None
            assert want is not None
            assert want.any()
            torch.testing.assert_close(got, want, rtol=0, atol=0)  # says how far apart they are
