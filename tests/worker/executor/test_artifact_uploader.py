"""Uploads of checkpoints beside other executors of the node, which keep objects of the same bytes in the same folder."""

from contract.messages.report_messages import Checkpointed
from tests.worker.executor.test_executor import CALM, SPACE
from tests.worker.inside import Inside
from worker.api_client import PlacementLink, Unreachable


def test_a_checkpoint_that_another_executor_drops_is_uploaded_all_the_same(fleet, placing, tmp_path, monkeypatch):
    """The same task twice has the same checkpoints; whoever ends or supersedes its own drops the object of these bytes."""
    put, gone = PlacementLink.put, []

    def away(self, grant, path):
        if not gone:
            objects = [one for one in path.parent.iterdir() if len(one.name) == 64]
            gone.append([one.unlink() for one in objects])
            raise Unreachable("storage is away")
        put(self, grant, path)

    monkeypatch.setattr(PlacementLink, "put", away)
    placement = placing(SPACE, early_exit=CALM, training={"epochs": 2})
    inside = Inside(fleet, tmp_path / "node", worker_checkpoint_seconds=0.05)
    (reported,) = inside.run(placement, paced=True)
    assert gone
    assert reported.of(Checkpointed)
    kept = {ref.sha256 for event in reported.of(Checkpointed) for ref in event.jobs.values()}
    assert kept <= fleet.objects.keys()
