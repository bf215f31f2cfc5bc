"""Four tenants share one executor, and a fault strikes it: nothing is lost, nothing mixed, nobody blamed wrongly.

On a CPU a task beside others, also resumed, has the bits of the task alone (docs/NUMERICS.md): what each leaves must be equal.
"""

from collections.abc import Iterator

import pytest

from tests.walk.executor_checks import run
from tests.walk.executor_faults import FAULTS, PATIENT, QUICK, Round
from tests.walk.running_stack import running_stack
from tests.walk.shared_executor import Left, SharedExecutor, alone_on

_STACKS = {"patient": PATIENT, "quick": QUICK}
ROUNDS = 40


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[SharedExecutor]:
    with running_stack(tmp_path_factory.mktemp("motet"), **_STACKS[request.param]) as motet:
        it = SharedExecutor(motet)
        yield it
        it.close()


@pytest.fixture(scope="module")
def alone(shared: SharedExecutor) -> list[Left]:
    """What each tenant's task leaves that shares with nobody."""
    return alone_on(shared)


def same_bits(left: Left, alone: Left) -> None:
    assert (left.curves, left.adapters) == (alone.curves, alone.adapters)


_NAMES = sorted(FAULTS)
_ROUNDS = {seed: _NAMES[seed % len(_NAMES)] for seed in range(1, ROUNDS + 1)}
_STALLS = [seed for seed, fault in _ROUNDS.items() if fault == "stop_executor"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shared", ["patient"], indirect=True)
@pytest.mark.parametrize("seed", [seed for seed in _ROUNDS if seed not in _STALLS])
def test_rounds_of_faults(shared: SharedExecutor, alone: list[Left], seed: int) -> None:
    """The long form: each fault as often as every other, in an order and at moments from the seeds."""
    run(Round(shared, seed), alone, same_bits, _ROUNDS[seed])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shared", ["quick"], indirect=True)
@pytest.mark.parametrize("seed", _STALLS)
def test_rounds_of_stalls(shared: SharedExecutor, alone: list[Left], seed: int) -> None:
    run(Round(shared, seed), alone, same_bits, _ROUNDS[seed])
