"""How many jobs a cut lets pass."""

import pytest

from contract.early_exit_policy import EarlyExitPolicy


@pytest.mark.parametrize(
    ("keep_fraction", "jobs", "alto", "guarded"),
    [
        (0.25, 60, 15, (8, 23)),
        (0.2, 10, 2, (1, 3)),  # 1.5 * 0.2 * 10 is more than 3
        (0.1, 100, 10, (5, 15)),
        (0.28, 25, 7, (4, 11)),  # 0.28 * 25 is more than 7
        (1e-9, 5, 1, (1, 1)),
        (1.0, 4, 4, (2, 4)),
    ],
)
def test_a_cut_keeps_its_fraction_rounded_up(keep_fraction, jobs, alto, guarded):
    assert EarlyExitPolicy(policy="alto", keep_fraction=keep_fraction).survivors(jobs) == (alto, alto)
    assert EarlyExitPolicy(policy="alto_guarded", keep_fraction=keep_fraction).survivors(jobs) == guarded
