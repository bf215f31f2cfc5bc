"""Bases in the service's storage, on an executor: fetched once, in place of the hub, waited for, refused in words."""

import hashlib
from pathlib import Path

import pytest

from contract.messages.placement_messages import BaseFile, BaseModelRef
from contract.messages.report_messages import PlacementFailed
from tests.free_ports import free_port
from tests.worker.inside import Inside
from worker.pipe_messages import ExecutorProgress

SPACE = {"learning_rate": [1e-2], "rank": [4], "batch_size": [4]}
SHORT = {"max_steps": 3}


@pytest.fixture
def stored(fleet, tiny_base) -> BaseModelRef:
    """The tiny base as the service hands over one that an admin uploaded."""
    files = []
    for path in sorted(Path(tiny_base.source).iterdir()):
        content = path.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        fleet.objects[sha256] = content
        files.append(BaseFile(path=path.name, sha256=sha256, bytes=len(content)))
    return tiny_base.model_copy(update={"source": "storage://tiny", "stored": True, "files": tuple(files)})


@pytest.fixture
def no_hub() -> str:
    """A hub's address where nobody listens."""
    return f"http://127.0.0.1:{free_port()}"


def sentences(inside: Inside) -> list[str]:
    return [how for news in inside.news if isinstance(news, ExecutorProgress) for how in news.loading.values()]


def test_a_base_in_storage_trains_as_one_in_a_folder_and_is_fetched_once(fleet, placing, tmp_path, stored, no_hub):
    (in_folder,) = Inside(fleet, tmp_path / "a").run(placing(SPACE, training=SHORT))
    inside = Inside(fleet, tmp_path / "b", hf_endpoint=no_hub)
    (fetched,) = inside.run(placing(SPACE, training=SHORT).model_copy(update={"base": stored}))
    assert fetched.curves == in_folder.curves
    assert any("base model tiny: " in said and "fetched from storage" in said for said in sentences(inside))
    for file in stored.files:
        del fleet.objects[file.sha256]
    (again,) = Inside(fleet, tmp_path / "b", hf_endpoint=no_hub).run(
        placing(SPACE, training=SHORT).model_copy(update={"base": stored})
    )
    assert again.curves == in_folder.curves, "the node keeps it"


def test_a_base_of_the_hub_that_is_in_storage_is_not_asked_of_the_hub(fleet, placing, tmp_path, stored, no_hub):
    kept = stored.model_copy(update={"source": "hf://org/tiny", "commit": "c" * 40})
    (reported,) = Inside(fleet, tmp_path, hf_endpoint=no_hub).run(
        placing(SPACE, training=SHORT).model_copy(update={"base": kept})
    )
    assert not reported.of(PlacementFailed)
    assert reported.ended


def test_wrong_bytes_of_storage_fail_the_task_in_words(fleet, placing, tmp_path, stored, no_hub):
    (weights,) = [file for file in stored.files if file.path == "model.safetensors"]
    content = fleet.objects[weights.sha256]
    fleet.objects[weights.sha256] = content[:-1] + bytes([content[-1] ^ 1])
    (reported,) = Inside(fleet, tmp_path, hf_endpoint=no_hub).run(placing(SPACE).model_copy(update={"base": stored}))
    (failed,) = reported.of(PlacementFailed)
    assert "model.safetensors of storage came with other bytes than the service pinned" in str(failed.error)
    assert "restore the object from a backup" in str(failed.error)
