"""The Triton kernels of the block's elementwise parts, the loss and the optimizer, against float64 and PyTorch's own."""

import pytest
import torch
from grouped_lora.adapter_spans import Span
from grouped_lora.block.cross_entropy import cross_entropy, span_sums
from grouped_lora.block.post_norm import post_norm
from grouped_lora.block.qkv_rotary import rotary, rotary_backward
from grouped_lora.block.residual_norm import norm_backward, residual_norm
from grouped_lora.block.whole_norm_rotary import whole_norm_rotary, whole_norm_rotary_backward
from grouped_lora.optimizer.adamw import adamw
from grouped_lora.products.shrink import shrink

from tests.kernels.triton_case import DEVICE, DTYPES, Case, close, rows_of, with_squares

EPS = 1e-5


def joined(
    case: Case,
    base: torch.Tensor,
    s: torch.Tensor,
    columns: tuple[int, ...],
    width: int,
    kind: torch.dtype,
    matrix: int | None = None,
) -> torch.Tensor:
    """base + Σ s[:, m] @ W_m per adapter, in `kind`; with a matrix's number, where its dropout lets the product through."""
    total = base.to(kind).clone()
    for span in case.spans:
        part = slice(span.start, span.stop)
        for mat, column in enumerate(columns):
            product = s[part, mat, : span.rank].to(kind) @ case.rows(span)[:, column : column + width].to(kind)
            total[part] += product if matrix is None else product * case.seen(span, matrix + mat, width, kind)
    return total


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_residual_norm_and_its_gradient(dtype: torch.dtype, dropout: float) -> None:
    d = 200
    case = Case((17, 1, 20) if dropout else (0, 1, 17, 70), width=2 * d, dtype=dtype, tail=5, dropout=dropout)
    x, y, dh, dr = (case.tokens(d) for _ in range(4))
    weight = case.normal(d).to(DEVICE, dtype)
    s, ds = case.shrunk(1), case.shrunk(2)
    total, h, rstd = residual_norm(x, y, s, case.weights, d, weight, EPS, case.table)
    close(total, lambda kind: joined(case, x.to(kind) + y.to(kind), s, (d,), d, kind), dtype)

    def normed(kind: torch.dtype) -> torch.Tensor:
        own_x = total.to(kind)
        return own_x * (own_x.square().mean(1, keepdim=True) + EPS).rsqrt() * weight.to(kind)

    def gradient(kind: torch.dtype) -> torch.Tensor:
        leaf = total.to(kind).requires_grad_()
        out = leaf * (leaf.square().mean(1, keepdim=True) + EPS).rsqrt() * weight.to(kind)
        out.backward(joined(case, dh, ds, (0, d), d, kind, 4))
        assert leaf.grad is not None
        return leaf.grad + dr.to(kind)

    close(h, normed, dtype)
    s_h = shrink(h, case.weights, case.table, (0, d), (d, d), dropout_matrix=4)
    got = norm_backward(dh, ds, s_h, case.weights, (0, d), total, rstd, weight, dr, case.table, 4)
    close(got, gradient, dtype)
    plain, alone, _ = residual_norm(total, None, None, case.weights, 0, weight, EPS, case.table)
    assert plain is total
    close(alone, normed, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("adapted", [True, False])
def test_an_output_that_is_normed_before_the_sum_and_its_gradient(dtype: torch.dtype, adapted: bool) -> None:
    d = 200
    case = Case((0, 1, 17, 70), width=2 * d, dtype=dtype, tail=5)
    x, y, dx = (case.tokens(d) for _ in range(3))
    own_weight, weight = case.normal(d).to(DEVICE), case.normal(d).to(DEVICE, dtype)  # one in fp32, as Gemma's are kept
    s, inner = case.shrunk(1) if adapted else None, y.clone()
    factor = post_norm(inner, s, case.weights, d, EPS, case.table)
    close(inner, lambda kind: joined(case, y, s, (d,), d, kind) if s is not None else y.to(kind), dtype)

    def normed(own: torch.Tensor, own_w: torch.Tensor) -> torch.Tensor:
        return own * (own.square().mean(1, keepdim=True) + EPS).rsqrt() * own_w.to(own.dtype)

    total, h, rstd = residual_norm(x, inner, None, case.weights, 0, weight, EPS, case.table, (factor, own_weight))
    close(total, lambda kind: x.to(kind) + normed(inner.to(kind), own_weight), dtype)
    close(h, lambda kind: normed(total.to(kind), weight), dtype)
    close(rstd, lambda kind: (total.to(kind).square().mean(1) + EPS).rsqrt(), torch.float32)

    def gradient(kind: torch.dtype) -> torch.Tensor:
        leaf = inner.to(kind).requires_grad_()
        normed(leaf, own_weight).backward(dx.to(kind))
        assert leaf.grad is not None
        return leaf.grad

    close(norm_backward(dx, None, None, dx, (), inner, factor, own_weight, None, case.table), gradient, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("norms", "hq", "hkv"), [(False, 3, 1), (True, 4, 2)])
def test_rotary_and_its_gradient(dtype: torch.dtype, norms: bool, hq: int, hkv: int) -> None:
    size = 40
    half, wide = size // 2, (hq + 2 * hkv) * size
    case = Case((1, 0, 33), width=wide, dtype=dtype, tail=4)
    qkv, s = case.tokens(wide), case.shrunk(3)
    angles = torch.rand(50, half, generator=case.generator).to(DEVICE) * 6
    cos, sin = angles.cos().contiguous(), angles.sin().contiguous()
    positions = torch.randint(0, 50, (case.total,), generator=case.generator, dtype=torch.int32).to(DEVICE)
    weights = (case.normal(size).to(DEVICE, dtype), case.normal(size).to(DEVICE, dtype), EPS) if norms else None
    columns = (0, hq * size, (hq + hkv) * size)
    upstream = case.tokens(wide)

    def plain(kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """The result, and the gradient of q, k, v as they were before norm and rotation."""
        places = zip(columns, (hq * size, hkv * size, hkv * size), strict=True)
        parts = [joined(case, qkv[:, c : c + w], s[:, m : m + 1], (c,), w, kind) for m, (c, w) in enumerate(places)]
        raw = torch.cat(parts, 1).to(dtype).to(kind).requires_grad_()
        heads, out = raw.view(case.total, hq + 2 * hkv, size), []
        for head in range(hq + 2 * hkv):
            z = heads[:, head]
            if head < hq + hkv:
                if weights is not None:
                    z = z * (z.square().mean(1, keepdim=True) + EPS).rsqrt() * weights[0 if head < hq else 1].to(kind)
                low, high = z[:, :half], z[:, half:]
                c, n = cos[positions.long()].to(kind), sin[positions.long()].to(kind)
                z = torch.cat([low * c - high * n, high * c + low * n], 1)
            out.append(z)
        truth = torch.cat(out, 1)
        truth.backward(upstream.to(kind))
        assert raw.grad is not None
        return truth.detach(), raw.grad

    got, back = qkv.clone(), upstream.clone()
    raw = rotary(got, s, case.weights, columns, cos, sin, positions, (hq, hkv), case.table, weights)
    close(got, lambda kind: plain(kind)[0], dtype)
    rotary_backward(back, cos, sin, positions, (hq, hkv), raw, weights)
    close(back, lambda kind: plain(kind)[1], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("hq", "hkv", "half"), [(3, 3, 20), (5, 1, 16), (8, 4, 3)])
def test_rotary_behind_norms_over_all_heads_and_its_gradient(dtype: torch.dtype, hq: int, hkv: int, half: int) -> None:
    size, normed = 2 * half, (hq + hkv) * 2 * half
    case = Case((1, 0, 33), width=normed + hkv * size, dtype=dtype, tail=4)
    qkv, upstream = case.tokens(normed + hkv * size), case.tokens(normed + hkv * size)
    angles = torch.rand(50, half, generator=case.generator).to(DEVICE) * 6
    cos, sin = angles.cos().contiguous(), angles.sin().contiguous()
    positions = torch.randint(0, 50, (case.total,), generator=case.generator, dtype=torch.int32).to(DEVICE)
    weights = case.normal(hq * size).to(DEVICE, dtype), case.normal(hkv * size).to(DEVICE, dtype)

    def plain(kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = qkv.to(kind, copy=True).requires_grad_()
        c, n = (table[positions.long()].to(kind)[:, None] for table in (cos, sin))
        out = []
        for z, weight in zip(leaf[:, :normed].split((hq * size, hkv * size), 1), weights, strict=True):
            z = z * (z.square().mean(1, keepdim=True) + EPS).rsqrt() * weight.to(kind)
            low, high = z.view(case.total, -1, size).split(half, 2)
            out.append(torch.cat([low * c - high * n, high * c + low * n], 2).flatten(1))
        truth = torch.cat([*out, leaf[:, normed:]], 1)
        truth.backward(upstream.to(kind))
        assert leaf.grad is not None
        return truth.detach(), leaf.grad

    got, back = qkv.clone(), upstream.clone()
    raw = whole_norm_rotary(got, weights, EPS, cos, sin, positions, (hq, hkv))
    assert torch.equal(raw, qkv[:, :normed])
    close(got, lambda kind: plain(kind)[0], dtype)
    whole_norm_rotary_backward(back, raw, weights, EPS, cos, sin, positions, (hq, hkv))
    close(back, lambda kind: plain(kind)[1], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cap", [None, 6.0])
def test_cross_entropy_its_gradient_and_a_rows_nan(dtype: torch.dtype, cap: float | None) -> None:
    logits = (torch.randn(6, 1000, generator=torch.Generator().manual_seed(1)) * 5).to(DEVICE, dtype)
    labels = torch.tensor([0, 999, 5, 7, 100, 3], device=DEVICE)
    weights = torch.tensor([1.0, 0.5, 0.0, 0.25, 1.0, 2.0], device=DEVICE)
    leaf = logits.double().requires_grad_()
    logp = torch.log_softmax(leaf if cap is None else cap * (leaf / cap).tanh(), 1)[torch.arange(6, device=DEVICE), labels]
    t = torch.zeros_like(logits) if cap is None else (logits / cap).tanh()
    plain = torch.softmax(logits if cap is None else cap * t, 1)
    plain[torch.arange(6, device=DEVICE), labels] -= 1
    plain *= 1 - t * t
    (-(logp * weights.double()).sum()).backward()
    poisoned = torch.cat([logits, torch.full((1, 1000), float("nan"), device=DEVICE, dtype=dtype)])
    got, _ = cross_entropy(poisoned, torch.cat([labels, labels[:1]]), torch.cat([weights, weights[:1]]), cap=cap)
    close(got[:6], logp.detach().to, torch.float32)
    assert leaf.grad is not None
    gradient = leaf.grad
    close(poisoned[:6], lambda kind: gradient if kind == torch.float64 else plain * weights[:, None].to(dtype), dtype)
    assert got[6].isnan()
    sums = span_sums(got, torch.tensor([0, 0, 2, 6, 7], device=DEVICE, dtype=torch.int32))
    close(sums[1:3], torch.stack([logp[:2].sum(), logp[2:].sum()]).detach().to, torch.float32)
    assert sums[0] == 0
    assert sums[3].isnan()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_gradient", [False, True])
@pytest.mark.parametrize(("vocabulary", "cap"), [(70, None), (40_001, None), (40_001, 30.0)])  # of one block, and of several
def test_a_hit_is_the_argmax_and_of_equal_logits_the_lowest_column(
    dtype: torch.dtype, with_gradient: bool, vocabulary: int, cap: float | None
) -> None:
    last = vocabulary - 1
    logits = torch.randn(10, vocabulary, generator=torch.Generator().manual_seed(2)).to(dtype)
    logits[1:6, [3, last]] = 50.0
    logits[2:5, last // 2] = 50.0
    logits[6] = -4.0
    logits[7] = float("nan")
    logits[8, 5] = float("nan") if cap else float("inf")  # a cap makes an infinite logit finite
    logits[9, 4:6] = 50.0
    labels = torch.tensor([int(logits[0].argmax()), 3, 3, last // 2, last, 5, 0, 0, 5, 5])
    wanted = (logits.argmax(1) == labels).float()
    wanted[7:9] = 0  # a loss that is not finite has no hit
    weights = torch.ones(9, device=DEVICE) if with_gradient else None
    _, hits = cross_entropy(logits.to(DEVICE), labels.to(DEVICE), weights, cap=cap)
    assert hits.tolist() == wanted.tolist() == [1, 1, 1, 0, 0, 0, 1, 0, 0, 0]


def test_adamw_equals_torch_per_adapter_with_its_own_clip() -> None:
    layers, height, width = 2, 40, 300
    spans = [Span(0, 0, 2, 8, 1.0), Span(0, 0, 16, 5, 1.0), Span(0, 0, 30, 3, 1.0), Span(0, 0, 34, 2, 1.0)]
    generator = torch.Generator().manual_seed(2)
    master = torch.randn(layers, height, width, generator=generator)
    parameters = [torch.nn.Parameter(master[:, s.row : s.row + s.rank].clone()) for s in spans]
    reference = [
        torch.optim.AdamW([p], lr=lr, weight_decay=wd, foreach=False)
        for p, lr, wd in zip(parameters, (1e-2, 3e-3, 1e-2, 1e-2), (0.1, 0.0, 0.0, 0.0), strict=True)
    ]
    state = master.to(DEVICE)
    moments = (torch.zeros_like(state), torch.zeros_like(state))
    copy = torch.zeros_like(state, dtype=DTYPES[-1])
    for step, size in enumerate((1e-3, 1.0, 3.0), 1):  # below the first adapter's clip, and above it
        grad = torch.full(master.shape, float("nan"))
        for s, p in zip(spans, parameters, strict=True):
            grad[:, s.row : s.row + s.rank] = size * torch.randn(layers, s.rank, width, generator=generator)
            p.grad = grad[:, s.row : s.row + s.rank].clone()
        grad[0, 31, 7] = float("nan")  # the third adapter's own trouble
        torch.nn.utils.clip_grad_norm_([parameters[0]], 1.0)
        for optimizer in reference:
            optimizer.step()
        c1, c2 = 1 - 0.9**step, 1 - 0.999**step
        rates = [[1e-2, 0.1, c1, c2, 1.0], [3e-3, 0.0, c1, c2, float("inf")], *[[1e-2, 0.0, c1, c2, 1.0]] * 2]
        table = rows_of(spans, rates)
        table.rows[-spans[3].rank :] = -1  # the fourth one is skipped
        norms = adamw(state, with_squares(grad.to(DEVICE), spans), moments, copy, table)
    for s, p in zip(spans[:2], parameters[:2], strict=True):
        close(state[:, s.row : s.row + s.rank].cpu(), p.detach().to, torch.float32)
    assert state[:, 30:33].isnan().all()
    assert norms[2, 0].isnan()
    rest = [row for row in range(height) if not any(s.row <= row < s.row + s.rank for s in spans[:3])]
    assert torch.equal(state[:, rest].cpu(), master[:, rest])
    close(copy[:, 2:10], state[:, 2:10].to, DTYPES[-1])


def dynamic_map(signed: bool) -> torch.Tensor:
    """The 256 values of the dynamic code, built as the paper tells it: decades of evenly spaced cell centres, 0 and 1."""
    values = [0.0, 1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1, (2**decade if signed else 2 ** (decade + 1)) + 1, dtype=torch.float64)
        centres = (10.0 ** (decade - 6) * (edges[:-1] + edges[1:]) / 2).tolist()
        values += centres + ([-c for c in centres] if signed else [])
    return torch.tensor(sorted(values), dtype=torch.float64)


def test_eight_bit_moments_stay_on_the_dynamic_code_and_follow_fp32() -> None:
    width, rank = 512 + 44, 4
    spans = [Span(0, 0, 1, rank, 1.0)]
    generator = torch.Generator().manual_seed(3)
    master = torch.randn(1, 6, width, generator=generator).to(DEVICE)
    exact, coarse = master.clone(), master.clone()
    moments = (torch.zeros_like(master), torch.zeros_like(master))
    codes = (
        torch.full(master.shape, 255, dtype=torch.uint8, device=DEVICE),
        torch.zeros(master.shape, dtype=torch.uint8, device=DEVICE),
    )
    scales = tuple(torch.zeros(1, 6, 3, device=DEVICE) for _ in range(2))
    copy = torch.zeros_like(master, dtype=torch.bfloat16)
    for step in range(1, 6):
        grad = (torch.randn(1, 6, width, generator=generator) * torch.rand(width, generator=generator) ** 2).to(DEVICE)
        table = rows_of(spans, [[1e-2, 0.0, 1 - 0.9**step, 1 - 0.999**step, float("inf")]])
        adamw(exact, with_squares(grad, spans), moments, copy, table)
        adamw(coarse, with_squares(grad, spans), (*codes, *scales), copy, table)
    from_code = stored(codes[0], scales[0], True)[0, 1 : 1 + rank], stored(codes[1], scales[1], False)[0, 1 : 1 + rank]
    for got, want in zip(from_code, (moments[0], moments[1]), strict=True):
        assert ((got - want[0, 1 : 1 + rank].double().cpu()).norm() / want[0, 1 : 1 + rank].double().cpu().norm()) < 0.05
    moved = (coarse - master)[0, 1 : 1 + rank]
    assert ((moved - (exact - master)[0, 1 : 1 + rank]).norm() / (exact - master)[0, 1 : 1 + rank].norm()) < 0.1
    assert torch.equal(coarse[0, 5], master[0, 5])


def stored(codes: torch.Tensor, scales: torch.Tensor, signed: bool) -> torch.Tensor:
    """Codes to values, through the published map: the code's ordinal among the map's magnitudes is its closed form."""
    magnitudes = dynamic_map(signed)
    magnitudes = magnitudes[magnitudes > 0]
    c = codes.long().cpu()
    values = torch.cat([magnitudes[:-1], magnitudes[-1:]])
    value = values[c & 127] if signed else torch.where(c == 0, 0.0, values[(c - 1).clamp_min(0)])
    if signed:
        value = torch.where(c == 255, 0.0, torch.where(c >= 128, -value, value))
    return value * scales.double().cpu().repeat_interleave(256, 2)[..., : codes.shape[2]]
