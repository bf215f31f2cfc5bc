"""The executor on a real tiny model, over real HTTP: what happens to jobs, alone and packed."""

from contract import wire
from tests.worker.inside import Inside


def test_first(fleet, placing, tmp_path):
    placement = placing(
        {"learning_rate": [1e-2, 1e-3, 1e-4, 3e-3], "rank": [8], "batch_size": [4]},
        training={"epochs": 3},
        early_exit={"warmup_fraction": 0.2, "tau_gap": 10.0},
    )
    inside = Inside(fleet, tmp_path)
    (reported,) = inside.run(placement)
    for e in reported.events:
        if not isinstance(e, wire.Points):
            print(e)
    print(inside.ended, len(reported.events), fleet.refused)
