"""Bases that fit on no GPU of a node: they are placed on as many as hold shards of them, where its worker shards bases."""

import pytest
from sqlalchemy import select

from contract.compatibility.capabilities import SHARDED_BASES, understood
from service.fleet.base_models.gpu_fit import USABLE_SHARE, held_bytes, holds_copy, least_gpus
from service.fleet.models import BaseModel
from tests.service.scheduler.test_widths import EIGHT
from worker.policy import base_sharding

GIB = 2**30
ABLE = {"capabilities": sorted(understood())}
OLDER = {"capabilities": sorted(understood() - {SHARDED_BASES})}


@pytest.fixture
def memory(tenant, database) -> int:
    """Of a GPU that holds half of the tests' base, which four of them can share, but not two."""
    with database.begin() as session:
        return session.scalars(select(BaseModel.parameters)).first()


def test_the_smallest_power_of_two_of_gpus_that_holds_a_base():
    assert held_bytes(60 * GIB, 80 * GIB, 4, shards=True) == 60 * GIB, "a copy on each, where it fits"
    assert held_bytes(140 * GIB, 80 * GIB, 4, shards=True) == 35 * GIB
    assert held_bytes(140 * GIB, 80 * GIB, 4, shards=False) is None
    assert held_bytes(140 * GIB, 80 * GIB, 2, shards=True) is None, "layers that are gathered need room beside it"
    assert held_bytes(76 * GIB, 80 * GIB, 1, shards=True) is None, "no job fits beside it"
    assert held_bytes(76 * GIB, 80 * GIB, 2, shards=True) == 38 * GIB
    assert held_bytes(76 * GIB, 80 * GIB, 2, shards=False) is None
    assert [least_gpus(size * GIB, 80 * GIB, 8, True) for size in (60, 100, 140, 480, 500)] == [1, 2, 4, 8, None]
    assert least_gpus(140 * GIB, 80 * GIB, 3, True) is None, "two are too few, and a node of three has no four"


def test_a_copy_is_held_where_a_job_fits_beside_it():
    assert holds_copy(72 * GIB, 80 * GIB)
    assert not holds_copy(73 * GIB, 80 * GIB)


def test_a_task_is_placed_where_its_gpus_share_the_base_and_its_estimate_says_so(tenant, new_node, plan, memory):
    node = new_node(slots=4, memory=memory, said=ABLE)
    spec = tenant.spec(tenant.file(), **EIGHT)
    narrow = tenant.post("/v1/tasks/estimate", json=spec | {"max_gpus": 1}).json()
    assert "Its base needs 4 CPU slots of one node, which share it layer by layer, and max_gpus allows 1;" in narrow["waiting"]
    assert (narrow["device_type"], narrow["sharding"]) == (None, None)
    wide = tenant.post("/v1/tasks/estimate", json=spec | {"gpus": 4}).json()
    assert (wide["waiting"], wide["gpus"]) == (None, 4)
    assert "4 CPU slots share the layers that do not fit, and gather each as passes need it." in wide["sharding"]
    made = [tenant.task(**EIGHT | asked)["id"] for asked in ({"gpus": 2, "max_gpus": 2}, {"gpus": 4})]
    plan()
    assert [placement.task_id for placement in node.desired().placements] == made[1:]
    waits = tenant.get(f"/v1/tasks/{made[0]}").json()["waiting"]
    assert waits["code"] == "no_node_fits"
    assert "raise max_gpus to 4, or leave it out, or take a smaller base or precision nf4" in waits["sentence"]


def test_a_worker_that_shards_no_bases_gets_none_and_a_task_with_texts_needs_a_copy(tenant, new_node, plan, memory):
    older, able = new_node(slots=4, memory=memory, said=OLDER), new_node(slots=4, memory=memory, said=ABLE)
    evaluation = {"metrics": [{"type": "exact_match"}], "max_new_tokens": 4}
    texts = tenant.task(**EIGHT | {"gpus": 4, "evaluation": evaluation})["id"]
    plain = tenant.task(**EIGHT | {"gpus": 4})["id"]
    plan()
    assert older.desired().placements == []
    assert [placement.task_id for placement in able.desired().placements] == [plain]
    waits = tenant.get(f"/v1/tasks/{texts}").json()["waiting"]
    assert waits["code"] == "no_node_fits"
    assert "take a smaller base" in waits["sentence"]


def test_a_copy_that_leaves_no_room_for_a_job_is_not_all_that_a_task_gets(tenant, new_node, plan, memory):
    """It asked for one GPU, of whose memory a copy would take 95 %."""
    node = new_node(slots=2, memory=round(2 * memory / 0.95), said=ABLE)
    made = tenant.task(**EIGHT)["id"]
    plan()
    (placement,) = node.desired().placements
    assert (placement.task_id, len(placement.device_indexes)) == (made, 2)


def test_where_a_copy_fits_each_gpu_holds_one(tenant, new_node, plan, memory):
    new_node(slots=4, memory=3 * memory, said=ABLE)
    estimate = tenant.post("/v1/tasks/estimate", json=tenant.spec(tenant.file(), **EIGHT, gpus=4)).json()
    assert estimate["sharding"] is None
    assert estimate["device_type"] == "cpu"


@pytest.mark.parametrize(
    ("said", "changes", "copy_share", "kind", "shares"),
    [
        (ABLE, {}, 0.95, "cpu", True),
        (ABLE, {}, 0.8, "cpu", False),  # by its weights alone it fits
        (OLDER, {}, 0.95, None, False),  # such a worker holds copies, or refuses the base
        (ABLE, {"evaluation": {"metrics": [{"type": "exact_match"}]}}, 0.95, None, False),  # texts need a copy
    ],
)
def test_an_estimate_tells_of_a_copy_that_leaves_no_room_for_a_pass(
    tenant, new_node, nothing_left, memory, said, changes, copy_share, kind, shares
):
    """A worker that shards bases shards some layers of it, though a copy alone would fit; on another the task waits."""
    assert base_sharding._MARGIN == USABLE_SHARE
    copy = 2 * memory  # bytes, in bf16
    new_node(slots=4, memory=round(copy / copy_share), said=said)
    spec = tenant.spec(tenant.file(), **EIGHT, gpus=4) | changes
    estimate = tenant.post("/v1/tasks/estimate", json=spec).json()
    assert estimate["device_type"] == kind
    assert ("share the layers that do not fit" in (estimate["sharding"] or "")) == shares
