"""Other implementations of the adapters' products on our base pass, attention and loss: a PyTorch loop, and torch's grouped_mm.

Base products, norm, rotary, SwiGLU and head come from worker/model/cuda/layers with no adapter in the work table; only the LoRA
computation differs, so a difference in time is LoRA's; and that they run the last layer on all tokens, as their users do.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from grouped_lora import Span
from grouped_lora.block.packed_attention import attention
from grouped_lora.block.packed_attention_backward import attention_backward
from grouped_lora.block.qkv_rotary import rotary, rotary_backward
from grouped_lora.block.residual_norm import norm_backward, residual_norm
from grouped_lora.block.swiglu import SwigluColumns, swiglu, swiglu_backward
from grouped_lora.gradient import Gradient
from torch import Tensor

from worker.model.arena_layout import GROUPS
from worker.model.cuda.batches.device_batch import DeviceBatch
from worker.model.cuda.batches.label_batch import LabelBatch
from worker.model.cuda.fused_head import head_loss
from worker.model.cuda.fused_pass import FusedPass


class Lora(ABC):
    """The products of all adapters with one matrix of one layer."""

    @abstractmethod
    def forward(self, x: Tensor, y: Tensor, layer: int, module: str) -> None:
        """y += the adapters' part of x's product; y is a view of columns."""

    @abstractmethod
    def backward(self, x: Tensor, dy: Tensor, dx: Tensor, layer: int, module: str) -> None:
        """dx += the adapters' part; stores dA and dB."""


class LoopLora(Lora):
    """One adapter after another, as in a plain PyTorch program."""

    def __init__(self, copy: Tensor, grad: Tensor, spans: Sequence[Span], columns: dict[str, tuple[int, int]]) -> None:
        self._copy, self._grad, self._spans, self._columns = copy, grad, spans, columns
        self._s: dict[tuple[int, str, int], Tensor] = {}

    def _views(self, layer: int, module: str, span: Span, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        a, b = self._columns[module]
        rows = slice(span.row, span.row + span.rank)
        in_, out = slice(a, a + x.shape[1]), slice(b, b + y.shape[1])
        return (
            self._copy[layer, rows, in_],
            self._copy[layer, rows, out],
            self._grad[layer, rows, in_],
            self._grad[layer, rows, out],
        )

    def forward(self, x: Tensor, y: Tensor, layer: int, module: str) -> None:
        for index, span in enumerate(self._spans):
            a, b, _, _ = self._views(layer, module, span, x, y)
            s = (x[span.start : span.stop] @ a.t()) * span.scale
            y[span.start : span.stop] += s @ b
            self._s[layer, module, index] = s

    def backward(self, x: Tensor, dy: Tensor, dx: Tensor, layer: int, module: str) -> None:
        for index, span in enumerate(self._spans):
            a, b, da, db = self._views(layer, module, span, x, dy)
            own = dy[span.start : span.stop]
            ds = (own @ b.t()) * span.scale
            dx[span.start : span.stop] += ds @ a
            da.copy_(ds.t() @ x[span.start : span.stop])
            db.copy_(self._s.pop((layer, module, index)).t() @ own)


class GroupedLora(Lora):
    """torch's grouped_mm over ranks padded to the largest."""

    def __init__(
        self,
        copy: Tensor,
        tokens: int,
        spans: Sequence[Span],
        columns: dict[str, tuple[int, int]],
        widths: dict[str, tuple[int, int]],
    ) -> None:
        rank = max(span.rank for span in spans)
        self._ends = torch.tensor([span.stop for span in spans], device=copy.device, dtype=torch.int32)
        self._scale = torch.zeros(tokens, 1, device=copy.device, dtype=copy.dtype)
        self._a: dict[tuple[int, str], Tensor] = {}
        self._b: dict[tuple[int, str], Tensor] = {}
        for span in spans:
            self._scale[span.start : span.stop] = span.scale
        for layer in range(copy.shape[0]):
            for module, (a, b) in columns.items():
                for store, at, width in ((self._a, a, widths[module][0]), (self._b, b, widths[module][1])):
                    padded = torch.zeros(len(spans), rank, width, device=copy.device, dtype=copy.dtype)
                    for index, span in enumerate(spans):
                        padded[index, : span.rank] = copy[layer, span.row : span.row + span.rank, at : at + width]
                    store[layer, module] = padded
        self.grads: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
        self._s: dict[tuple[int, str], Tensor] = {}

    def forward(self, x: Tensor, y: Tensor, layer: int, module: str) -> None:
        s = F.grouped_mm(x, self._a[layer, module].transpose(1, 2), offs=self._ends) * self._scale
        y += F.grouped_mm(s, self._b[layer, module], offs=self._ends)
        self._s[layer, module] = s

    def backward(self, x: Tensor, dy: Tensor, dx: Tensor, layer: int, module: str) -> None:
        ds = F.grouped_mm(dy, self._b[layer, module].transpose(1, 2), offs=self._ends) * self._scale
        dx += F.grouped_mm(ds, self._a[layer, module], offs=self._ends)
        da = F.grouped_mm(ds.t(), x, offs=self._ends)
        db = F.grouped_mm(self._s.pop((layer, module)).t(), dy, offs=self._ends)
        self.grads[layer, module] = (da, db)


class PeerPass:
    """Forward and backward with the adapters' products computed by `lora`. `base`: a batch whose table has no adapters."""

    def __init__(self, fused: FusedPass, lora: Lora) -> None:
        self._fused, self._stack, self._lora = fused, fused.stack, lora

    def _apply(self, x: Tensor, y: Tensor, layer: int, group: str) -> None:
        for module, part in zip(GROUPS[group], self._parts(y, group), strict=True):
            self._lora.forward(x, part, layer, module)

    def _undo(self, x: Tensor, dy: Tensor, dx: Tensor, layer: int, group: str) -> None:
        for module, part in zip(GROUPS[group], self._parts(dy, group), strict=True):
            self._lora.backward(x, part, dx, layer, module)

    def _parts(self, y: Tensor, group: str) -> Sequence[Tensor]:
        sh = self._stack.dims
        if group == "qkv":
            return y.split([sh.q_width, sh.kv_width, sh.kv_width], 1)
        return y.chunk(2, 1) if group == "gate_up" else [y]

    def train(self, base: DeviceBatch, labels: LabelBatch) -> Tensor:
        """The sums of log-probabilities; `lora` keeps the gradients."""
        stack, sh, table = self._stack, self._stack.dims, base.table
        heads, none = sh.heads, self._fused.embedding
        x, y = self._fused.embedding.index_select(0, base.tokens), None
        kept = []
        for layer, w in enumerate(stack.layers):
            x, h, rstd = residual_norm(x, y, None, none, 0, w.norm_attention, sh.eps, table)
            qkv = torch.mm(h, w.w_qkv.t())
            self._apply(h, qkv, layer, "qkv")
            rotary(qkv, None, none, (0, 0, 0), *stack.rotaries[0], base.positions, heads, table)
            out, lse = attention(qkv, base.sequences, heads, sh.shape.scale)
            y = torch.mm(out, w.w_o.t())
            self._apply(out, y, layer, "o")
            x_mid, h_mid, rstd_mid = residual_norm(x, y, None, none, 0, w.norm_mlp, sh.eps, table)
            gate_up = torch.mm(h_mid, w.w_gate_up.t())
            self._apply(h_mid, gate_up, layer, "gate_up")
            act, _ = swiglu(gate_up, None, none, SwigluColumns(0, 0, 0), table)
            y = torch.mm(act, w.w_down.t())
            self._apply(act, y, layer, "down")
            kept.append((x, h, rstd, qkv, out, lse, x_mid, h_mid, rstd_mid, gate_up, act))
            x = x_mid
        x, h, rstd = residual_norm(x, y, None, none, 0, stack.final_norm, sh.eps, table)
        sums, _, of_labels = head_loss(labels.of(h), self._fused.head, labels.labels, with_gradient=True)
        assert of_labels is not None
        dh = labels.spread(of_labels, h.shape[0], None)
        dx = stack.residual.final_backward(dh, x, rstd, table)
        for layer in range(len(stack.layers) - 1, -1, -1):
            w = stack.layers[layer]
            x, h, rstd, qkv, out, lse, x_mid, h_mid, rstd_mid, gate_up, act = kept.pop()
            dact = torch.mm(dx, w.w_down)
            self._undo(act, dx, dact, layer, "down")
            dgu = swiglu_backward(gate_up, dact, None, None, none, Gradient(none), SwigluColumns(0, 0, 0), table)
            dh = torch.mm(dgu, w.w_gate_up)
            self._undo(h_mid, dgu, dh, layer, "gate_up")
            dx = norm_backward(dh, None, None, none, (), x_mid, rstd_mid, w.norm_mlp, dx, table)
            dout = torch.mm(dx, w.w_o)
            self._undo(out, dx, dout, layer, "o")
            dqkv = attention_backward(dout, qkv, out, lse, base.sequences, heads, sh.shape.scale)
            rotary_backward(dqkv, *stack.rotaries[0], base.positions, heads)
            dh = torch.mm(dqkv, w.w_qkv)
            self._undo(h, dqkv, dh, layer, "qkv")
            dx = norm_backward(dh, None, None, none, (), x, rstd, w.norm_attention, dx, table)
        return sums
