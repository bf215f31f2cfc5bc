"""The benchmark beside rivals, as far as it needs none of them: ours and the parts that they share against plain PyTorch."""

import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.rivals.__main__ import TOY, figures, worst_errors
from benchmarks.rivals.contestant import Outcome, agrees, compare, truth
from benchmarks.rivals.layer_cell import MODULES, CellSpec, LayerCell, two_layers
from benchmarks.rivals.layer_timing import BASE, EAGER, GRAPHED, LORAFUSION, MLORA, OURS
from benchmarks.rivals.module_loading import version_of
from benchmarks.rivals.our_layer import OurLayer
from benchmarks.rivals.shared_parts import Axis, SeparateLinears, both_ways, by_adapter

CLOSE = 1e-5
INTERPRETED = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="NOT RUN: the host runs no compiled kernel")


class PlainLinears(SeparateLinears):
    """One adapter's linear maps in PyTorch, which leave rows of the axis unwritten, as a rival may."""

    def __init__(self, cell: LayerCell, unwritten: Tensor) -> None:
        self._cell, self._unwritten = cell, unwritten
        factors = cell.factors[0]
        self.factors = {m: tuple(part.clone().requires_grad_() for part in factors[m]) for m in MODULES}

    def linear(self, h: Tensor, module: str) -> Tensor:
        a, b = self.factors[module]
        y = h @ self._cell.matrices()[module].t() + self._cell.spans[0].scale * (h @ a.t()) @ b.t()
        keep = torch.ones(h.shape[0], 1)
        keep[self._unwritten] = 0
        return torch.where(keep > 0, y, torch.full_like(y, 1e30))


@INTERPRETED
def test_our_layer_and_the_shared_parts_agree_with_plain_pytorch() -> None:
    backbone = two_layers(TOY, "cpu", torch.float32)
    cell = LayerCell(CellSpec("two", 2, (16, 32), 1, 9), TOY, backbone, torch.float32)
    for adapted in (True, False):
        ours = OurLayer(cell, adapted)
        ours.run()
        errors = compare(ours.outcome(), truth(cell, adapted))
        assert agrees(errors, CLOSE), errors
        assert len(errors) == (4 if adapted else 2)
    one = LayerCell(CellSpec("one", 1, (16,), 2, 9), TOY, backbone, torch.float32)
    unwritten = torch.arange(18, 23)
    linears = PlainLinears(one, unwritten)
    x, dy = (torch.cat([part, torch.zeros(5, TOY.hidden)]) for part in (one.x, one.dy))
    leaves = [leaf for module in MODULES for leaf in linears.factors[module]]
    out, dx, grads = both_ways(x.requires_grad_(), dy, linears, Axis(one, one.axis([9, 9, 5]), unwritten), leaves)
    errors = compare(Outcome(out[:18], dx[:18], by_adapter(grads)), truth(one))
    assert agrees(errors, CLOSE), errors


def test_a_wrong_gradient_of_one_adapter_does_not_agree() -> None:
    right = {module: (torch.ones(2, 3), torch.ones(3, 2)) for module in MODULES}
    wrong = right | {"up_proj": (torch.ones(2, 3), torch.full((3, 2), 1.1))}
    x = torch.ones(4, 3)
    errors = compare(Outcome(x, x, [right, wrong]), Outcome(x, x, [right, right]))
    assert errors == {"output": 0.0, "dx": 0.0, "da": 0.0, "db": pytest.approx(0.1)}
    assert not agrees(errors, 0.03)
    assert not agrees(compare(Outcome(x * float("nan"), x, []), Outcome(x, x, [])), 0.03)


def test_figures_are_the_least_ratios_of_those_timed() -> None:
    rows = [
        {"what": f"one layer, forward + backward, {name}", "mode": mode, "over_ours": ratio, "agreement": {"dx": ratio / 1000}}
        for name, mode, ratio in (
            *((OURS, EAGER, 1.0), (BASE, EAGER, 0.9), (BASE, GRAPHED, 0.8)),
            *((LORAFUSION, EAGER, 5.0), (LORAFUSION, EAGER, 3.0), (LORAFUSION, GRAPHED, 2.0), (MLORA, EAGER, 4.0)),
        )
    ]
    rows.append({"what": f"one layer, forward + backward, {MLORA}", "mode": GRAPHED, "error": "cannot be captured"})
    found = figures(rows)
    assert found["x_lorafusion_min"] == 2.0
    assert found["x_lorafusion_eager_min"] == 3.0
    assert found["x_mlora_min"] == 4.0
    assert found["x_base_min"] == 0.8
    assert not {"x_mlora_graphed_min", "x_unsloth_min"} & set(found)
    assert worst_errors(rows)[LORAFUSION] == 0.005


def test_the_commit_of_what_was_carried_without_its_checkout(tmp_path: Path) -> None:
    assert version_of(tmp_path) == "unknown"
    (tmp_path / "COMMIT").write_text("0123456789abcdef\n")
    assert version_of(tmp_path) == "0123456789ab"
