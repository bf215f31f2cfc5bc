"""Up to how many tokens passes are captured: by the chip, its memory, the base's layers, and whether it is sharded."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from worker.model.cuda import device_trainer
from worker.model.cuda.batches.device_batch import COARSE, FINE, REPEATED, token_bucket

GB = 2**30


def backbone(hidden: int, ffn: int, shards: object = None, device: str = "cuda") -> Any:
    """As much of one as the rule reads: a layer's weights as wide as a Llama's, and the device."""
    weights = {
        "w_qkv": (hidden * 3 // 2, hidden),
        "w_o": (hidden, hidden),
        "w_gate_up": (2 * ffn, hidden),
        "w_down": (hidden, ffn),
    }
    layer = SimpleNamespace(**{name: torch.empty(shape, device="meta") for name, shape in weights.items()})
    return SimpleNamespace(shards=shards, device=torch.device(device), layers=[layer])


@pytest.mark.parametrize(
    ("capability", "memory", "shape", "expected"),
    [
        ((9, 0), 80 * GB, (2048, 8192), 8192),  # Llama-3.2-1B's layers: the ones that the limit was measured on
        ((12, 0), 96 * GB, (1024, 4096), 8192),  # smaller ones: no more than that
        ((9, 0), 80 * GB, (2304, 9216), pytest.approx(6400, rel=0.02)),  # a quarter more parameters, a quarter fewer tokens
        ((9, 0), 80 * GB, (4096, 14336), pytest.approx(2290, rel=0.02)),  # 8B
        ((8, 9), 80 * GB, (4096, 14336), pytest.approx(1145, rel=0.02)),
        ((8, 9), 80 * GB, (2048, 8192), 4096),
        ((9, 0), 40 * GB, (2048, 8192), 4096),
    ],
)
def test_fast_chips_with_much_memory_capture_longer_passes_of_small_layers(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], memory: int, shape: tuple[int, int], expected: object
) -> None:
    properties = SimpleNamespace(major=capability[0], minor=capability[1], total_memory=memory)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert device_trainer._graph_tokens(backbone(*shape)) == expected


def test_a_sharded_base_captures_nothing() -> None:
    assert device_trainer._graph_tokens(backbone(2048, 8192, shards=object())) == 0


def test_without_a_gpu_the_limit_is_that_of_any() -> None:
    assert device_trainer._graph_tokens(backbone(2048, 8192, device="cpu")) == device_trainer.GRAPH_TOKENS


def test_the_shorter_passes_are_the_coarser_are_their_buckets() -> None:
    """By what a capture costs beside them; a launched one has the finest."""
    trainer = SimpleNamespace(graph_tokens=8192)
    found = [device_trainer.DeviceTrainer.grain(trainer, tokens) for tokens in (32, 2048, 2049, 8192, 8193)]  # type: ignore[arg-type]
    assert found == [REPEATED, REPEATED, COARSE, COARSE, FINE]
    assert [token_bucket(2450, grain) for grain in (REPEATED, COARSE, FINE)] == [2560, 2560, 2496]
    assert [token_bucket(2300, grain) for grain in (REPEATED, COARSE, FINE)] == [2304, 2304, 2304]
    assert [token_bucket(2310, grain) for grain in (REPEATED, COARSE, FINE)] == [2560, 2432, 2368]
