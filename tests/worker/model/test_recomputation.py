"""Recomputed activations against kept ones: the same bits, and less memory."""

import pytest
import torch
from torch import Tensor

from tests.worker.model import tiny
from worker.model.arena import Arena
from worker.model.backbone import Backbone
from worker.model.flat_batch import Segment
from worker.model.peak_memory import peak_bytes
from worker.model.plain.recomputation import recomputed
from worker.model.plain.trainer import Trainer


def _deep(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(6):
        x = torch.tanh(x @ w)
    return x


def _given() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(50, 20, requires_grad=True), torch.randn(20, 20, requires_grad=True)


def test_gradients_keep_their_bits():
    x, w = _given()
    _deep(_deep(x, w), w).sum().backward()
    kept = x.grad, w.grad
    x.grad = w.grad = None
    recomputed(_deep, recomputed(_deep, x, w), w).sum().backward()
    assert torch.equal(x.grad, kept[0])
    assert torch.equal(w.grad, kept[1])


def test_forward_keeps_nothing_of_the_function():
    x, w = _given()
    with torch.no_grad():
        one = peak_bytes(lambda: _deep(x, w), [x, w])
    assert peak_bytes(lambda: _deep(x, w), [x, w]) > 2 * one
    assert peak_bytes(lambda: recomputed(_deep, x, w), [x, w]) <= one + 4 * 50 * 20


def test_it_computes_again_what_backward_needs_and_no_more():
    """exp saves its result alone, so what follows it is not computed again."""
    x, _ = _given()
    seen: list[str] = []

    def function(x: Tensor) -> Tensor:
        seen.append("begun")
        y = x.exp()
        seen.append("ended")
        return y + 1

    recomputed(function, x).sum().backward()
    assert seen == ["begun", "ended", "begun"]
    torch.testing.assert_close(x.grad, x.detach().exp())


def test_without_gradients_it_is_the_function():
    x, w = _given()
    with torch.no_grad():
        assert torch.equal(recomputed(_deep, x, w), _deep(x, w))


def test_what_the_second_computation_raises_reaches_the_caller():
    x, w = _given()
    times = iter([1])

    def function(x: Tensor, w: Tensor) -> Tensor:
        if next(times, None) is None:
            raise MemoryError("the second time")
        return _deep(x, w)

    y = recomputed(function, x, w)
    with pytest.raises(MemoryError, match="the second time"):
        y.sum().backward()


@pytest.mark.parametrize("name", tiny.configs())
def test_a_pass_keeps_its_bits(name: str):
    backbone = Backbone.of(tiny.model(tiny.configs()[name]))
    trainer = Trainer(backbone, Arena(backbone.targets, 16))
    segments = [Segment(trainer.arena.attach(rank, alpha=8.0), tiny.examples([23, 9], seed=rank)) for rank in (8, 3)]
    tiny.randomise(trainer, segments)
    losses, grads = [], []
    for recompute in (False, True):
        trainer.arena.grad.zero_()
        losses.append([float(loss.total) for loss in trainer.train(segments, recompute)])
        grads.append(trainer.arena.grad.clone())
    assert losses[0] == losses[1]
    assert grads[0].abs().max() > 0
    assert torch.equal(*grads)
