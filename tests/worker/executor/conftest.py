"""What tests of the executor share."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from contract.messages.placement_messages import BaseModelRef
from contract.messages.report_messages import AdapterKept
from contract.model_revision import revision_of
from tests.worker.fleet import Fleet
from tests.worker.inside import Inside
from worker.replicas import base_loader


@pytest.fixture
def trained(fleet: Fleet, placing: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """The files of an adapter that a short task of these parts left."""

    def train(space: dict[str, Any], data: Any = None, **spec: Any) -> Any:
        short = placing(space, data, early_exit={"policy": "none", "eval_every": 4}, training={"epochs": 2}, **spec)
        (reported,) = Inside(fleet, tmp_path / short.placement_id).run(short)
        return reported.of(AdapterKept)[0].manifest.files

    return train


@pytest.fixture
def wordy_base(tiny_base: BaseModelRef, tmp_path: Path) -> BaseModelRef:
    """The tiny base with a tokenizer that knows a token more than it, as those of Gemma 3's text models do, and with a template
    that writes nothing of a message "nothing"."""
    folder = tmp_path / "wordy"
    shutil.copytree(tiny_base.source, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    tokenizer.chat_template = "{% for m in messages if m['content'] != 'nothing' %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    return BaseModelRef(name="tiny", source=str(folder), revision=revision_of(folder))


@pytest.fixture
def changed(tiny_base: BaseModelRef, tmp_path: Path) -> BaseModelRef:
    """A base whose folder has other weights than its revision, of the same shapes."""
    folder = shutil.copytree(tiny_base.source, tmp_path / "changed")
    (weights,) = folder.glob("*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    return tiny_base.model_copy(update={"source": str(folder)})


@pytest.fixture
def slow_check(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The check of a revision ends once this is set."""
    ends, check = threading.Event(), base_loader.check_revision

    def slowly(ref: BaseModelRef) -> None:
        assert ends.wait(60)
        check(ref)

    monkeypatch.setattr(base_loader, "check_revision", slowly)
    return ends
