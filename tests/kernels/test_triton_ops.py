"""The grouped products as operators: torch.compile keeps one graph, the numbers are the same, gradients land in the buffer."""

import torch
from grouped_lora.products.torch_ops import adapt

from tests.kernels.triton_case import DEVICE, Case, close, own

K, N = 48, 32


def test_one_graph_with_the_same_numbers_and_gradients_written_where_they_belong() -> None:
    case = Case((0, 1, 17, 70), width=K + N, dtype=torch.float32, tail=5)
    x, w = case.tokens(K), case.normal(N, K).to(DEVICE)
    grad = torch.full(case.weights.shape, 7.0, device=DEVICE)
    at = grad.data_ptr()

    def layer(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        return torch.relu(adapt(x, x @ w.t(), case.weights, grad, case.table, 0, K)).square()

    explained = torch._dynamo.explain(layer)(x.clone().requires_grad_(), grad)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    results = []
    for run in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        grad.fill_(7.0)
        leaf = x.clone().requires_grad_()
        out = run(leaf, grad)
        out.sum().backward()
        assert leaf.grad is not None
        results.append((out.detach(), leaf.grad, grad.clone()))
    assert grad.data_ptr() == at
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager)
    for span in case.spans:

        def plain(kind: torch.dtype, span=span) -> torch.Tensor:
            rows = case.rows(span).to(kind)
            s = span.scale * own(x, span, kind) @ rows[:, :K].T
            z = own(x, span, kind) @ w.to(kind).T + s @ rows[:, K:]
            dy = 2 * z.clamp_min(0)
            ds = span.scale * dy @ rows[:, K:].T
            return torch.cat([ds.T @ own(x, span, kind), s.T @ dy], 1)

        if span.stop > span.start:
            close(results[0][2][span.row : span.row + span.rank], plain, torch.float32)
