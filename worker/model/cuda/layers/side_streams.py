"""Side streams: run S, dS, dA and dB, which are bound by memory, beside the base products, which are bound by compute. Knows no
layers. (dB of gate and up and dA of down are no launches of their own: block/swiglu.py makes them.)

While products are short, these kernels run on streams of higher priority, in what a product leaves idle at its start and end.
Beside long products the streams have the default priority.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from grouped_lora.gradient import Gradient
from grouped_lora.products.shrink import shrink
from grouped_lora.products.weight_gradients import weight_gradient
from grouped_lora.work_table import WorkTable
from torch import Tensor

# ms a pass on an H100, 32 adapters, with / without priorities: 6,000 tokens 58.9 / 59.9; 12,000 113.3 / 114.0; 24,000
# 222.5 / 219.1
SHORT_TOKENS = 16384
SOON, LATE = -2, -1  # priorities beside short products


@dataclass(frozen=True)
class GradientProduct:
    """One product for `weight_gradient`. Of dA, `of_ranks` is dS and `of_features` X, to which dropout applies; of dB, they
    are S and dY. starts: each matrix's first column of the gradient; y_starts: of `of_features`."""

    of_ranks: Tensor
    of_features: Tensor
    starts: tuple[int, ...]
    widths: tuple[int, ...]
    y_starts: tuple[int, ...] | None = None
    dropout_matrix: int | None = None

    def launch(self, grad: Gradient, table: WorkTable) -> None:
        weight_gradient(
            self.of_ranks, self.of_features, grad, table, self.starts, self.widths, self.y_starts, self.dropout_matrix
        )


class SideStreams:
    """Two streams beside the current one, of one pair for short passes and one for long ones: S and dS, needed soon, and
    dA and dB, for which only the next `launch_gradients` waits. A pass of 16 layers makes some 130 launches there. What torch
    looks up for each was a tenth of the host's time, so the pass's own stream is looked up once, and one event serves all."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._main = device, torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._pair_of_short_passes, self._pair_of_long_passes = (
            [torch.cuda.Stream(device, priority) if device.type == "cuda" else None for priority in priorities]
            for priorities in ((SOON, LATE), (0, 0))
        )
        self._soon, self._late = self._pair_of_short_passes
        self._reached = torch.cuda.Event() if device.type == "cuda" else None
        self._held: list[GradientProduct] = []  # whose tensors are being read
        self._s_under_way = False

    def choose_streams(self, tokens: int) -> None:
        """Choose the streams for a pass of `tokens` tokens, whose own stream is the current one until its end."""
        if self._main is not None:
            self._main = torch.cuda.current_stream(self._device)
        self._soon, self._late = self._pair_of_short_passes if tokens <= SHORT_TOKENS else self._pair_of_long_passes

    def shrink(
        self,
        x: Tensor,
        adapters: Tensor,
        table: WorkTable,
        starts: tuple[int, ...],
        widths: tuple[int, ...],
        x_starts: tuple[int, ...] | None = None,
        dropout_matrix: int | None = None,
    ) -> Tensor:
        """S [T, M, RMAX] of grouped_lora.products.shrink. Valid after `join`, and until then x must not change."""
        s = torch.empty((x.shape[0], len(starts), table.max_rank), dtype=x.dtype, device=x.device)
        with self._beside(self._soon):
            shrink(x, adapters, table, starts, widths, x_starts, s, dropout_matrix)
        self._s_under_way = self._soon is not None
        return s

    def shrunk(self, x: Tensor, lora: Tensor, table: WorkTable, starts: tuple[int, ...], matrix: int) -> Tensor | None:
        """S of all of x for the matrices whose A start there, the first numbered `matrix`; None without adapters."""
        if table.max_rank == 0:
            return None
        return self.shrink(x, lora, table, starts, (x.shape[1],) * len(starts), dropout_matrix=matrix)

    def join(self) -> None:
        """Make the current stream wait for the S begun so far."""
        if self._s_under_way:
            self._wait(self._main, self._soon)
            self._s_under_way = False

    def abandon(self) -> None:
        """Release the tensors of a pass that ended in an error. The device is idle."""
        self._held, self._s_under_way = [], False

    def launch_gradients(self, gradients: list[GradientProduct], grad: Gradient, table: WorkTable) -> None:
        """Launch a layer's dA and dB; first wait for those of the call before, whose tensors are then free. Call with an empty
        list after the last layer."""
        self.join()
        if self._held:
            self._wait(self._main, self._late)
        self._held = gradients
        if gradients:
            with self._beside(self._late):
                for gradient in gradients:
                    gradient.launch(grad, table)

    @contextmanager
    def _beside(self, stream: torch.cuda.Stream | None) -> Iterator[None]:
        """Launch on this stream, once what the pass's own has so far is through; where there is none, on the current one."""
        if stream is None or self._main is None:
            yield
            return
        self._wait(stream, self._main)
        torch.cuda.set_stream(stream)
        try:
            yield
        finally:
            torch.cuda.set_stream(self._main)

    def _wait(self, stream: torch.cuda.Stream | None, other: torch.cuda.Stream | None) -> None:
        """What `stream` gets next waits for what `other` has so far."""
        if stream is not None and other is not None and self._reached is not None:
            self._reached.record(other)
            stream.wait_event(self._reached)
