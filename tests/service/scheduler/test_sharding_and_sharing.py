"""Nobody joins an executor whose worker has sharded its base: texts cannot be generated there. Both rules are asked: by the
room that the planner counts for a pass, workers that shard as needed (`auto`) hold copies wherever tasks may share."""

import pytest

from contract.states import JobStatus
from service.fleet.base_models.gpu_fit import BYTES_PER_WEIGHT
from service.scheduler.estimate.sharing_estimate import sharing
from service.scheduler.estimate.step_cost import StepCost
from service.scheduler.estimate.survival import ReportedProgress
from worker.policy.base_sharding import BaseSizes, plan_sharding

GIB, PASS_TOKENS = 2**30, 16384  # as many as a worker takes by default, four times of what it must have room for
# Llama's shapes: layers, hidden, inner, vocabulary
SHAPES = {"1B": (16, 2048, 8192, 128256), "8B": (32, 4096, 14336, 128256), "70B": (80, 8192, 28672, 128256)}
JOB = ReportedProgress(JobStatus.TRAINING, 0, 1000, 100, 4, True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("precision", BYTES_PER_WEIGHT)
def test_where_tasks_may_share_a_worker_holds_copies(shape, precision):
    layers, hidden, inner, vocabulary = SHAPES[shape]
    each = 4 * hidden * hidden + 3 * hidden * inner
    parameters, weight = layers * each + 2 * vocabulary * hidden, BYTES_PER_WEIGHT[precision]
    sizes = BaseSizes((int(each * weight),) * layers, (2 * vocabulary * hidden,) * 2, 4 * layers * hidden)
    features = 8 * hidden + 3 * (hidden + inner)
    room = 2 * (PASS_TOKENS * (layers * hidden + 2 * features) + 2 * hidden * inner)
    shared = 0
    for memory in (tenth * GIB // 10 for tenth in range(10, 6000)):
        free = memory - parameters * weight
        if sharing("base", [JOB], 100.0, StepCost(0.01, 1e-5), 2, free, parameters, 3.0, 1.0) is not None:
            shared += 1
            assert plan_sharding(sizes, 2, memory, room) is None, memory / GIB
    assert shared, "there are GPUs on which it is shared"
