"""A placement that was lost and the one that went on, beside one that nothing happened to."""

from tests.worker.reported import Reported


def adapters(reported: Reported) -> dict[int, list]:
    return {job: manifest.files for job, manifest in reported.manifests.items()}


def assert_goes_on_from_checkpoints(lost: Reported, rest: Reported, unbroken: Reported) -> None:
    """Of three jobs, each of which had a checkpoint: every point of their curves, and their adapters."""
    kept = {job: ref.step for job, ref in lost.checkpoints.items()}
    assert set(kept) == {0, 1, 2}
    for key, curve in unbroken.curves.items():
        before = {step: value for step, value in lost.curves[key].items() if step <= kept[key[0]]}
        assert before | rest.curves[key] == curve
    assert adapters(rest) == adapters(unbroken)
