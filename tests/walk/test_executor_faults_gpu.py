"""Four tenants share one executor on a GPU, and a fault strikes it: nothing is lost, nothing mixed, nobody blamed wrongly.

On a GPU a task beside others is that task alone to bf16's rounding (docs/NUMERICS.md), so losses are compared to 2 %, or to
2 % of the first one where rows are known by heart: no other tenant has such rows.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.walk.executor_checks import run
from tests.walk.executor_faults import FAULTS, PATIENT, QUICK, Round, stop_executor
from tests.walk.running_stack import running_stack
from tests.walk.shared_executor import SPECS, Left, SharedExecutor, alone_on

pytestmark = pytest.mark.gpu

TIMES = 25  # as many steps as on a CPU, of which one takes so much longer; at rates so much lower
ROWS = 140  # a tenant's, of which one a step is enough for as many steps
_PATIENT = [name for name, fault in FAULTS.items() if fault is not stop_executor]
_HOLDER = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


def longer(spec: Mapping[str, Any]) -> dict[str, Any]:
    space, training, early_exit = spec["search_space"], spec["training"], spec["early_exit"]
    return {
        "search_space": {**space, "batch_size": [1], "learning_rate": [rate / TIMES for rate in space["learning_rate"]]},
        "training": {**training, "max_steps": training["max_steps"] * TIMES},
        "early_exit": {**early_exit, "eval_every": early_exit["eval_every"] * TIMES},
    }


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[SharedExecutor]:
    with running_stack(tmp_path_factory.mktemp("motet"), **request.param, MOTET_WORKER_DEVICE="cuda") as motet:
        it = SharedExecutor(motet, [longer(spec) for spec in SPECS], ROWS)
        yield it
        it.close()


@pytest.fixture(scope="module")
def alone(shared: SharedExecutor) -> list[Left]:
    return alone_on(shared)


@contextmanager
def refused_gpu_memory(pid: int, more: int) -> Iterator[None]:
    """Another process holds all but so many bytes of the GPU."""
    command = [sys.executable, "-c", _HOLDER, str(more)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield
        holder.kill()


def same_to_rounding(left: Left, alone: Left) -> None:
    assert _shape(left) == _shape(alone)
    for (job, series), curve in left.curves.items():
        if series.endswith("loss"):
            expected = list(alone.curves[job, series].values())
            assert list(curve.values()) == pytest.approx(expected, rel=2e-2, abs=2e-2 * expected[0]), (job, series)


def _shape(left: Left) -> tuple[Any, Any]:
    """The steps of each curve and the files of each adapter."""
    return {key: list(curve) for key, curve in left.curves.items()}, {job: set(files) for job, files in left.adapters.items()}


@pytest.mark.parametrize("shared", [PATIENT], indirect=True, ids=["patient"])
@pytest.mark.parametrize("fault", _PATIENT)
@pytest.mark.parametrize("seed", [1, 2])
def test_faults(shared: SharedExecutor, alone: list[Left], fault: str, seed: int) -> None:
    run(Round(shared, seed, refused_gpu_memory), alone, same_to_rounding, fault)


@pytest.mark.parametrize("shared", [QUICK], indirect=True, ids=["quick"])
@pytest.mark.parametrize("seed", [1, 2])
def test_stalls(shared: SharedExecutor, alone: list[Left], seed: int) -> None:
    run(Round(shared, seed), alone, same_to_rounding, stop_executor.__name__)
