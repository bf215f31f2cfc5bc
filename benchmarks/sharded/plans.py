"""Which layers each contestant shards under a cap of memory, by the worker's own rule, given what it holds beside the base.

Motet's room is what the worker leaves for a task of that batch size; a rival's is what its PyTorch program takes. Pure but
for the counts of shapes; runs nothing.
"""

import torch

from benchmarks.llama_shapes import LlamaShape
from benchmarks.sharded.adapter_bank import BYTES_A_NUMBER
from benchmarks.sharded.drawn_model import TOY, sizes_of
from benchmarks.sharded.motet import PASS_TOKENS
from benchmarks.sharded.workload import ADAPTERS, numbers_of_adapter, widths
from worker.policy.base_sharding import ShardPlan, plan_sharding, spread
from worker.replicas.sharding_choice import room_beside

MOTET, FSDP, FSDP_PACKED, TP_PACKED = "motet", "fsdp", "fsdp_packed", "tp_packed"
EVERY_LAYER = "_every_layer"  # of a name: all layers are sharded, whatever the memory
NCCL_MEMORY = "_nccl_memory"  # of a name: NCCL allocates the buffers that are gathered into
# Of a device, where nobody says otherwise: under it none holds the base beside what is trained.
CAPS_GB = {"toy": 1.0, "8b": 20.0, "32b": 80.0, "70b": 80.0}
_ARENA_BYTES = 18  # a number: float32 weights, gradient and two moments, and a copy in bfloat16
_FSDP_BUFFERS = 2  # layers: what FSDP gathers into, beside the two gathered ones that a plan counts
_PLAIN_PASS = 2  # times the worker's estimate of a pass: PyTorch keeps more intermediate results of a layer than the kernels
_LOGITS = 10**9  # a chunk of the rivals' logits in float32, with its copies


def plan_of(
    name: str, shape: LlamaShape, world: int, memory: int, batch: int, tokens: int, recompute: bool
) -> ShardPlan | None:
    """None: the contestant shards no layer. tokens: of a row."""
    name = name.removesuffix(NCCL_MEMORY)
    everything = ShardPlan(world, tuple(range(shape.layers)))
    if name.endswith(EVERY_LAYER):
        return everything
    if name == TP_PACKED:
        return None
    if shape == TOY:
        return ShardPlan(world, spread(3, shape.layers))
    rows = {name: ADAPTERS // world * batch for name in (MOTET, FSDP_PACKED)} | {FSDP: -(-batch // world)}
    pass_tokens = rows[name] * tokens
    sizes, estimate = sizes_of(shape, torch.bfloat16, pass_tokens)
    adapter = numbers_of_adapter(shape)
    kept = 0 if recompute else 2 * pass_tokens * shape.layers * sum(map(sum, widths(shape).values()))
    if name == MOTET:
        _, longest = sizes_of(shape, torch.bfloat16, PASS_TOKENS)
        adapters = adapter * ADAPTERS // world * _ARENA_BYTES
        room = room_beside(min(estimate, longest) + kept, longest, adapters, adapter * _ARENA_BYTES)
    else:
        held = adapter * (1 if name == FSDP else ADAPTERS // world) * BYTES_A_NUMBER
        room = _PLAIN_PASS * estimate + kept + held + _FSDP_BUFFERS * max(sizes.layers) + _LOGITS
    return plan_sharding(sizes, world, memory, room)
