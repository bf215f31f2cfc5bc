"""Each kernel of a step alone, on Llama-3.2-1B's shape: its time beside the bytes it must move, as a share of memory bandwidth.

    python -m benchmarks.kernel_timing [--commit HASH]

The gate is the whole step's. Times are medians of captured graphs over rotating buffers, 32 adapters, batch 1.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import pairwise
from typing import Any

import torch
from grouped_lora.block.packed_attention import attention
from grouped_lora.block.packed_attention_backward import AdapterInputGradient, attention_backward
from grouped_lora.block.qkv_rotary import rotary
from grouped_lora.block.residual_norm import norm_backward, residual_norm
from grouped_lora.block.swiglu import swiglu, swiglu_backward
from grouped_lora.products.shrink import shrink
from grouped_lora.products.weight_gradients import weight_gradient
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from benchmarks.gate import run_gate
from benchmarks.llama_shapes import LLAMA_1B, LlamaShape, Rows, attach, feed, random_backbone
from benchmarks.result_file import median_ms, write_result
from benchmarks.roofline import copy_bytes_per_s
from worker.model.cuda.batches.device_batch import BatchShape, fill, tables, unpack
from worker.model.cuda.device_arena import DeviceArena
from worker.model.cuda.device_trainer import DeviceTrainer, spans_of
from worker.model.cuda.fused_pass import FusedPass
from worker.model.flat_batch import FlatBatch

SETS = 3  # rotating buffer sets, so that no input is still cached from the previous call


@dataclass(frozen=True)
class Measured:
    """One kernel call: run(set), and the bytes that it must read and write."""

    name: str
    run: Callable[[int], object]
    moved: int


def calls() -> list[Measured]:
    """Every kind of call of one layer, forward and backward."""
    one_layer = LlamaShape(3, *(getattr(LLAMA_1B, f) for f in ("hidden", "ffn", "heads", "kv_heads", "head_size")), 1024, True)
    backbone = random_backbone(one_layer)
    arena = DeviceArena(backbone.targets, 1168, "cuda", torch.bfloat16)
    trainer = DeviceTrainer(backbone, arena)
    fed = feed(attach(trainer, 32), Rows(1024), 1)
    flat = FlatBatch.of(fed)
    spans, slots = spans_of(fed, flat.ranges)
    arena.refresh(slots)
    table = tables(flat, spans, (False,) * 32)
    shape = BatchShape.of(flat, table)
    batch = unpack(shape, torch.from_numpy(fill(shape, flat, table)).cuda())
    fused = FusedPass(backbone, arena.layout, 4096)
    sh, t, work, ranks = fused.stack.dims, shape.tokens, batch.table, sum(span.rank for span in spans)
    copy, grad = arena.layered(arena.compute_copy), arena.gradient
    d, f = sh.hidden, sh.ffn
    wide = sh.q_width + 2 * sh.kv_width

    def tensors(*size: int) -> list[Tensor]:
        return [torch.randn(*size, device="cuda", dtype=torch.bfloat16) for _ in range(SETS)]

    h, act, gu, qkv = tensors(t, d), tensors(t, f), tensors(t, 2 * f), tensors(t, wide)
    s = {mats: tensors(t, mats, work.max_rank) for mats in (1, 2, 3)}
    weight, heads = torch.randn(d, device="cuda", dtype=torch.bfloat16), sh.heads
    out, lse = attention(qkv[0], batch.sequences, heads, sh.shape.scale)
    gate_up, trio, widths, starts = sh.b("gate_proj", "up_proj"), ("q_proj", "k_proj", "v_proj"), (d, 512, 512), (0, d, d + 512)
    (cos, sin), at = fused.stack.rotaries[0], batch.positions
    tokens, row = 2 * t, 2 * ranks  # bytes of one column of activations, and of one column of the compute copy
    own = sh.swiglu(0)
    b_qkv = (sh.b("q_proj")[0], sh.b("k_proj")[0], sh.b("v_proj")[0])
    return [
        Measured("shrink, q k v", lambda i: shrink(h[i], copy[i], work, sh.a(*trio), (d,) * 3), tokens * d + row * 3 * d),
        Measured(
            "shrink, dS of gate and up", lambda i: shrink(gu[i], copy[i], work, gate_up, (f, f), (0, f)), 2 * f * (tokens + row)
        ),
        Measured(
            "shrink, dS of q k v", lambda i: shrink(qkv[i], copy[i], work, sh.b(*trio), widths, starts), wide * (tokens + row)
        ),
        Measured(
            "outer, dA of q k v",
            lambda i: weight_gradient(s[3][i], h[i], grad.layer(i), work, sh.a(*trio), (d,) * 3),
            d * (tokens + 6 * row),
        ),
        Measured(
            "outer, dA of o",
            lambda i: weight_gradient(s[1][i], h[i], grad.layer(i), work, sh.a("o_proj"), (d,)),
            d * (tokens + 2 * row),
        ),
        Measured(
            "residual + norm",
            lambda i: residual_norm(h[i], h[i - 1], s[1][i], copy[i], sh.b("o_proj")[0], weight, 1e-5, work),
            d * (4 * tokens + row),
        ),
        Measured(
            "norm backward, gate and up",
            lambda i: norm_backward(
                h[i], s[2][i], s[2][i - 1], copy[i], sh.a("gate_proj", "up_proj"), h[i - 1], lse[0], weight, h[i - 2], work
            ),
            d * (4 * tokens + 2 * row),
        ),
        Measured("swiglu and S of down", lambda i: swiglu(gu[i], s[2][i], copy[i], own, work), f * (3 * tokens + 3 * row)),
        Measured(
            "swiglu backward, dB of gate and up, dA of down",
            lambda i: swiglu_backward(gu[i], act[i], s[2][i], s[1][i], copy[i], grad.layer(i), own, work),
            f * (5 * tokens + 9 * row),
        ),
        Measured(
            "rotary", lambda i: rotary(qkv[i], s[3][i], copy[i], b_qkv, cos, sin, at, heads, work), wide * (2 * tokens + row)
        ),
        Measured("attention", lambda i: attention(qkv[i], batch.sequences, heads, sh.shape.scale), tokens * (wide + d)),
        Measured(
            "attention backward",
            lambda i: attention_backward(h[i], qkv[i], out, lse, batch.sequences, heads, sh.shape.scale),
            tokens * (2 * wide + 2 * d),
        ),
        Measured(
            "attention backward, dX of o",
            lambda i: attention_backward(
                h[i],
                qkv[i],
                out,
                lse,
                batch.sequences,
                heads,
                sh.shape.scale,
                incoming=AdapterInputGradient(s[1][i], copy[i], sh.a("o_proj")[0], work, 0),
            ),
            tokens * (2 * wide + 3 * d) + row * d,
        ),
        *torch_attention(qkv, [*flat.bounds, t] if t > flat.size else flat.bounds, heads, tokens * (wide + d)),
    ]


def torch_attention(qkv: list[Tensor], bounds: Sequence[int], heads: tuple[int, int], moved: int) -> list[Measured]:
    """torch's own attention for packed sequences on the same batch, for comparison with ours.

    Where it does not support grouped queries, K and V are copied to every query head, as its users must do.
    """
    hq, hkv = heads
    size = qkv[0].shape[1] // (hq + 2 * hkv)
    at = torch.tensor(bounds, dtype=torch.int32, device="cuda")
    longest = max(stop - start for start, stop in pairwise(bounds))
    grouped: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
    dout = torch.randn(qkv[0].shape[0], hq, size, device="cuda", dtype=qkv[0].dtype)

    def run(index: int, back: bool) -> None:
        parts = [p.detach().requires_grad_(back) for p in qkv[index].view(-1, hq + 2 * hkv, size).split([hq, hkv, hkv], 1)]
        q, k, v = parts if grouped else (parts[0], *(p.repeat_interleave(hq // hkv, 1) for p in parts[1:]))
        out = varlen_attn(q, k, v, at, at, longest, longest, window_size=(-1, 0), **grouped)
        if back:
            torch.autograd.grad(out, parts, dout)

    return [
        Measured("torch varlen_attn", lambda i: run(i, False), moved),
        Measured("torch varlen_attn, forward and backward", lambda i: run(i, True), 3 * moved),
    ]


def measure(call: Measured) -> dict[str, Any]:
    """Microseconds per call inside a captured graph over all buffer sets, and the share of copy bandwidth reached."""

    def every() -> None:
        for index in range(SETS):
            call.run(index)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        every()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        every()
    median, least, most = (value / SETS * 1e3 for value in median_ms(graph.replay, 20))
    return {
        "what": call.name, "us": median, "least_us": least, "most_us": most, "must_move_mb": call.moved / 1e6,
        "of_copy_bandwidth": call.moved / (median * 1e-6) / copy_bytes_per_s(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    options = parser.parse_args()
    gate = run_gate()
    rows = [measure(call) for call in calls()]
    for row in rows:
        print({key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}, flush=True)
    names = {row["what"]: row["what"].replace(",", "").replace("+", "and").replace(" ", "_").lower() for row in rows}
    print(
        write_result("kernels", gate, {f"{names[row['what']]}_us": round(row["us"], 2) for row in rows}, rows, options.commit)
    )


if __name__ == "__main__":
    main()
