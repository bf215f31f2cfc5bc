"""A tiny random base with a real tokenizer, a fleet API over real HTTP, and tasks to place on it."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from contract import wire
from contract.revision import revision_of
from contract.spec import TaskSpec
from contract.states import JobStatus
from tests.worker.corpus import EXAMPLE_BASE, jsonl, rows
from tests.worker.fleet import Fleet

hypothesis.settings.register_profile("unhurried", deadline=None)  # the cores are shared with real processes
hypothesis.settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> wire.BaseModelRef:
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
    return wire.BaseModelRef(name="tiny", source=str(folder), revision=revision_of(folder))


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    it = Fleet()
    yield it
    it.close()
    assert it.refused == []


Placing = Callable[..., wire.Placement]


@pytest.fixture
def placing(fleet: Fleet, tiny_base: wire.BaseModelRef) -> Placing:
    """Make a placement of a task: `placing(space, rows=..., **more of the spec)`. Its file is on the fleet already."""
    numbers = itertools.count(1)

    def place(space: dict[str, Any], data: list[dict[str, Any]] | None = None, **spec: Any) -> wire.Placement:
        number = next(numbers)
        file = fleet.add_file(f"file_{number}", jsonl(data if data is not None else rows(40)))
        dataset = {"file_id": file.file_id, **spec.pop("dataset", {})}
        made = TaskSpec.model_validate({"base_model": "tiny", "dataset": dataset, "search_space": space, **spec})
        key = f"p{number}"
        return wire.Placement(
            placement_id=key,
            fence=1,
            token=f"token-{key}",
            lease_seconds=fleet.lease_seconds,
            task_id=f"task_{number}",
            device_indexes=[0],
            base=tiny_base,
            train_file=file,
            validation_file=None,
            spec=made,
            jobs=[
                wire.JobAssignment(job_id=f"job_{number}_{index}", index=index, config=config, status=JobStatus.PENDING)
                for index, config in enumerate(made.jobs())
            ],
        )

    return place
