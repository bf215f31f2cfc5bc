"""Objects that storage holds damaged copies of: who needs one is told, and does not ask for ever."""

import pytest

from contract.messages.report_messages import PlacementFailed
from tests.worker.inside import Inside
from worker.api_client import Unreachable
from worker.data.node_cache import NodeCache
from worker.executor.preparation.object_fetch import DamagedObject, ObjectFetch

SPACE = {"learning_rate": [1e-3], "rank": [4], "batch_size": [4]}


def test_a_task_whose_file_is_damaged_fails_in_words(fleet, placing, tmp_path):
    placement = placing(SPACE)
    fleet.files[placement.train_file.file_id] += b"\n"
    (reported,) = Inside(fleet, tmp_path).run(placement)
    (failed,) = reported.of(PlacementFailed)
    assert f"asked was for {placement.train_file.sha256}; storage holds a damaged copy, restore it" in failed.error


def test_wrong_bytes_are_asked_for_once_more(tmp_path):
    cache = NodeCache(tmp_path)
    objects, folder = ObjectFetch(cache), cache.objects("tenant")
    for sha256 in ("a" * 64, "b" * 64):
        with pytest.raises(Unreachable, match="fetched 3 bytes"):
            objects.fetch(lambda: folder, sha256, lambda: [b"cut"])
    with pytest.raises(DamagedObject, match=f"2 times: .* asked was for {'a' * 64}"):
        objects.fetch(lambda: folder, "a" * 64, lambda: [b"cut"])
    assert not list(folder.folder.iterdir())
