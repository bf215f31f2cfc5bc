"""A tiny random base with a real tokenizer, a fleet API over real HTTP, and tasks to place on it."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from contract.messages.placement_messages import BaseModelRef, Placement
from contract.model_revision import revision_of
from tests.worker.corpus import EXAMPLE_BASE
from tests.worker.fleet import Fleet
from tests.worker.inside import Inside
from tests.worker.placer import placer


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> BaseModelRef:
    """A Llama of two narrow layers with random weights, under the tokenizer and template of the example's base."""
    folder = tmp_path_factory.mktemp("bases") / "tiny"
    folder.mkdir()
    for path in EXAMPLE_BASE.glob("*token*"):
        shutil.copy(path, folder)
    shutil.copy(EXAMPLE_BASE / "chat_template.jinja", folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(folder)),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return BaseModelRef(name="tiny", source=str(folder), revision=revision_of(folder))


@pytest.fixture(scope="session")
def deep_base(tiny_base: BaseModelRef, tmp_path_factory: pytest.TempPathFactory) -> BaseModelRef:
    """A Llama of five layers, with a head of its own, under the tokenizer of the tiny one."""
    folder = tmp_path_factory.mktemp("bases") / "deep"
    shutil.copytree(tiny_base.source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = LlamaConfig.from_pretrained(tiny_base.source, num_hidden_layers=5, tie_word_embeddings=False)
    torch.manual_seed(1)
    LlamaForCausalLM(config).save_pretrained(folder)
    return BaseModelRef(name="tiny", source=str(folder), revision=revision_of(folder))


@pytest.fixture(autouse=True)
def patient_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of this process is sent twice because the machine stood still for ten seconds."""
    monkeypatch.setattr("worker.api_client._TIMEOUT", httpx.Timeout(120.0))
    monkeypatch.setattr("worker.data.hub_source._TIMEOUT", httpx.Timeout(120.0))


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    it = Fleet()
    yield it
    it.close()
    assert it.refused == []


Placing = Callable[..., Placement]


@pytest.fixture
def placing(fleet: Fleet, tiny_base: BaseModelRef) -> Placing:
    return placer(fleet, tiny_base)


@pytest.fixture(scope="session")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profiles")


@pytest.fixture
def measured_once(profiles: Path) -> Iterator[None]:
    """A base's memory profile is measured by the first node that needs it: it counts tensors, so all would measure the same.
    Its six passes take as long as what some tests train."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Inside, "profiles", profiles)
        yield


Lacking = set[str]


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> Lacking:
    """Beginnings of the names of threads that the system does not start."""
    names, start = Lacking(), threading.Thread.start

    def refused(self: threading.Thread) -> None:
        if self.name.startswith(tuple(names)):
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refused)
    return names
