"""The head against PyTorch's cross entropy, chunk by chunk, in the good and in the bad."""

import pytest
import torch
import torch.nn.functional as F

from worker.model.plain import lm_head as module
from worker.model.plain.lm_head import label_loss


def _case(count: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(count)
    return (
        torch.randn(count, 30, dtype=dtype),
        torch.randn(131, 30, dtype=dtype),
        torch.randint(0, 131, (count,)),
        torch.rand(count),
    )


@pytest.mark.parametrize("count", [0, 1, 15, 16, 100])
@pytest.mark.parametrize(("chunk_rows", "cap"), [(1000, None), (40, None), (20, None), (40, 3.0)])
def test_losses_and_gradient_equal_cross_entropy(
    count: int, chunk_rows: int, cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk_rows * 131 * 8)
    h, head, labels, weights = _case(count, torch.float64)
    h.requires_grad_()
    ours = label_loss(h.detach(), head, labels, weights, cap)
    logits = h @ head.t() if cap is None else cap * (h @ head.t() / cap).tanh()
    expected = F.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(ours.nll_L, expected.detach(), rtol=1e-12, atol=1e-12)
    assert torch.equal(ours.hits_L, (logits.argmax(1) == labels).double())
    (expected * weights).sum().backward()
    assert ours.dh_LK is not None
    torch.testing.assert_close(ours.dh_LK, h.grad, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_hit_is_the_argmax_and_of_rounded_logits_that_tie_the_lowest(dtype: torch.dtype) -> None:
    h, head, _, _ = _case(400, torch.float64)
    h, head = (h * 4).to(dtype), head.to(dtype)
    logits = F.linear(h, head)
    second = logits.topk(2, 1).indices
    labels = torch.where(torch.arange(400) % 2 == 0, second[:, 0], second[:, 1])
    assert (logits == logits.amax(1, keepdim=True)).sum() > 400 or dtype != torch.bfloat16, "some tie"
    found = label_loss(h, head, labels, None).hits_L
    assert torch.equal(found, (logits.argmax(1) == labels).to(found.dtype))
    assert 0 < found.sum() < 400


def test_without_weights_there_is_no_gradient() -> None:
    h, head, labels, _ = _case(33)
    assert label_loss(h, head, labels, None).dh_LK is None


def test_a_label_that_is_next_to_impossible_keeps_its_loss() -> None:
    h, head, labels, weights = _case(20)
    ours = label_loss(h * 1e3, head, labels, weights)
    expected = F.cross_entropy((h.double() * 1e3) @ head.t().double(), labels, reduction="none")
    assert expected.max() > 1e3
    torch.testing.assert_close(ours.nll_L.double(), expected, rtol=1e-5, atol=1e-3)


def test_a_broken_row_breaks_itself_alone() -> None:
    h, head, labels, weights = _case(40)
    healthy = label_loss(h, head, labels, weights)
    h[7], h[8] = float("nan"), float("inf")
    broken = label_loss(h, head, labels, weights)
    others = torch.ones(40, dtype=torch.bool)
    others[7:9] = False
    assert broken.nll_L[7:9].isnan().all()
    assert not broken.hits_L[7:9].any()
    assert torch.equal(broken.nll_L[others], healthy.nll_L[others])
    assert broken.dh_LK is not None
    assert healthy.dh_LK is not None
    assert torch.equal(broken.dh_LK[others], healthy.dh_LK[others])
