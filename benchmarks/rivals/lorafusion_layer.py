"""LoRAFusion's layer: its fused products of a frozen matrix with up to four adapters, as shipped, microbatch by microbatch.

Each microbatch has four adapters, the most its operator takes, and an axis of its own on which every adapter's tokens are
padded to its tiles of 128, as its own training lays them out. Each passes the whole layer, forward and backward. No dropout.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from triton.runtime.errors import OutOfResources

from benchmarks.rivals import module_loading
from benchmarks.rivals.contestant import Contestant, Outcome
from benchmarks.rivals.layer_cell import MODULES, Factors, LayerCell
from benchmarks.rivals.shared_parts import Axis, SeparateLinears, both_ways, by_adapter

A_CALL = 4  # adapters
H100 = "h100-80gb-hbm3"  # its table's name of the chip
PRODUCTS = ("fused_multi_lora_xw_sb", "fused_multi_lora_dyw_dsa", "fused_multi_lora_dys_dyb")


class _OnHost(TorchFunctionMode):
    """Without a GPU: what is asked for on "cuda" lies on the host."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:  # fmt: skip
        named = dict(kwargs or {})
        if named.get("device") == "cuda":
            named["device"] = "cpu"
        return func(*args, **named)


class _Microbatch(SeparateLinears):
    """Up to four adapters on their own padded axis. Its linear maps are LoRAFusion's."""

    def __init__(self, cell: LayerCell, operators: ModuleType, tile: int, places: range) -> None:
        self._operators, self._matrices = operators, cell.matrices()
        self._lora = [cell.factors[place] for place in places]
        spans = [cell.spans[place] for place in places]
        sizes = [span.stop - span.start for span in spans]
        self._info = operators.prepare_multi_lora_batch_info(
            seq_len_list=sizes, lora_idx_list=list(range(len(spans))), lora_rank_list=[span.rank for span in spans],
            dropout_p_list=[0.0] * len(spans), alpha_list=[span.scale for span in spans], block_size_m=tile,
            output_dtype=cell.dtype,
        )  # fmt: skip
        lengths: list[int] = []
        own: list[Tensor] = []
        self.slice = slice(spans[0].start, spans[-1].stop)
        for place, size in zip(places, sizes, strict=True):
            own.append(torch.arange(size) + sum(lengths))
            padding = -size % tile
            lengths += [*cell.row_lengths[place], *([padding] if padding else [])]
        self.own = torch.cat(own).to(cell.device)
        unwritten = torch.ones(sum(lengths), dtype=torch.bool, device=cell.device)
        unwritten[self.own] = False
        rows = unwritten.nonzero().flatten()
        self._axis = Axis(cell, cell.axis(lengths), rows if len(rows) else None)
        self._x, self._dy = (torch.zeros(sum(lengths), cell.x.shape[1], dtype=cell.dtype, device=cell.device) for _ in "xy")
        self._x[self.own], self._dy[self.own] = cell.x[self.slice], cell.dy[self.slice]
        self._x.requires_grad_()
        self._lora = [
            {module: (a.clone().requires_grad_(), b.clone().requires_grad_()) for module, (a, b) in own.items()}
            for own in self._lora
        ]
        self._leaves = [leaf for own in self._lora for module in MODULES for leaf in own[module]]

    def linear(self, h: Tensor, module: str) -> Tensor:
        info = self._info
        y: Tensor = self._operators.fused_linear_multi_lora(
            padded_x=h[None], linear_w=self._matrices[module], lora_a_list=[own[module][0] for own in self._lora],
            lora_b_list=[own[module][1] for own in self._lora], seq_len_list=info.seq_len_list,
            padded_seq_len_list=info.padded_seq_len_list, block_to_lookup_table=info.block_to_lookup_table,
            block_to_dropout_p=info.block_to_dropout_p, block_to_alpha=info.block_to_alpha, enable_dropout=info.enable_dropout,
            same_dropout_p_value=info.same_dropout_p_value, max_r=info.max_r,
        )  # fmt: skip
        return y.squeeze(0)

    def run(self) -> None:
        self.out, self.dx, self._gradients = both_ways(self._x, self._dy, self, self._axis, self._leaves)

    def gradients(self) -> list[Factors]:
        return by_adapter(self._gradients)


class LoraFusionLayer(Contestant):
    note = "as shipped: 4 adapters a microbatch, each of which passes the layer, each adapter's tokens padded to 128"

    def __init__(self, cell: LayerCell, directory: Path) -> None:
        self._cell = cell
        operators, self._config, product = module_loading.lorafusion(directory)
        self._table = self._configured(cell.device)
        if cell.device == "cpu":  # else it makes these in its first backward, on the GPU
            product.GLOBAL_DS_PTR_LIST, product.GLOBAL_A_PTR_LIST = torch.zeros(
                2, product.MAX_NUM_BLOCK_M_SIZE, dtype=torch.int64
            )
        with self._devices():
            self._microbatches = [
                _Microbatch(
                    cell, operators, self._table.fused_multi_lora_block_size_m, range(len(cell.spans))[at : at + A_CALL]
                )
                for at in range(0, len(cell.spans), A_CALL)
            ]

    def _devices(self) -> AbstractContextManager[object]:
        return _OnHost() if self._cell.device == "cpu" else nullcontext()

    def _configured(self, device: str) -> Any:
        """Its table of this chip; on a chip that it has none of, that of the H100; on the host tiny tiles of the same kind."""
        config = self._config
        if device == "cpu":
            small = config.LoRATritonConfig(16, 16, 16, 8, 1, 4)
            table = replace(
                config.H100_CONFIG,
                fused_multi_lora_block_size_m=16,
                fused_multi_lora_xw_sb=small,
                fused_multi_lora_dyw_dsa=small,
                fused_multi_lora_dys_dyb=replace(small, block_size_n=None),
            )
            config.get_hardware_config = lambda: table
            return table
        chip = config.get_device_short_name()
        if chip not in config.HARDWARE_CONFIGS:
            config.HARDWARE_CONFIGS[chip] = config.HARDWARE_CONFIGS[H100]
            self.note += ", with its table of the H100"
        return config.HARDWARE_CONFIGS[chip]

    def run(self) -> None:
        with self._devices():
            for microbatch in self._microbatches:
                microbatch.run()

    def settle(self) -> None:
        """Run once. Where its tiles do not fit the chip's shared memory, with fewer pipeline stages, as the note then says."""
        while True:
            try:
                return self.run()
            except OutOfResources:
                stages = max(getattr(self._table, name).num_stages for name in PRODUCTS) - 1
                if not stages:
                    raise
                for name in PRODUCTS:
                    own = getattr(self._table, name)
                    setattr(self._table, name, replace(own, num_stages=min(own.num_stages, stages)))
                self.note += f", with {stages} stages instead of its table's, which do not fit"

    def outcome(self) -> Outcome:
        out, dx = (torch.empty_like(self._cell.x) for _ in ("output", "gradient"))
        for microbatch in self._microbatches:
            out[microbatch.slice], dx[microbatch.slice] = microbatch.out[microbatch.own], microbatch.dx[microbatch.own]
        return Outcome(out, dx, [own for microbatch in self._microbatches for own in microbatch.gradients()])
