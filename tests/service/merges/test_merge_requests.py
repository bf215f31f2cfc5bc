"""Requests for merges: those that cannot be met say so, also when several come at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError

from service.adapters.models import Adapter
from service.fleet.base_models import model_catalog
from service.fleet.models import BaseModel
from service.merges.merge_requests import MOST_OPEN, NewMergedModel, begin
from service.merges.models import MergedModel
from service.tenants.api_keys import Principal
from service.tenants.models import Tenant
from tests.service.live_server import until
from tests.service.lock_waits import waiting_for_locks


def test_requests_at_once_stay_within_the_number_of_open_merges(tenant, adapter_of, merge, database):
    for _ in range(MOST_OPEN - 1):
        merge(tenant)
    adapter_id = adapter_of(tenant)
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as session:
            begin(session, Principal(tenant.tenant_id, "key", frozenset()), NewMergedModel(adapter_id=adapter_id))
            beside = pool.submit(tenant.post, "/v1/merged-models", json={"adapter_id": adapter_id})
            until(lambda: beside.done() or waiting_for_locks(database))
        assert beside.result().json()["code"] == "quota_exceeded"


def test_an_adapter_is_not_deleted_while_a_merge_of_it_is_begun(tenant, adapter_of, database):
    adapter_id = adapter_of(tenant)
    delete = select(Adapter).where(Adapter.id == adapter_id).with_for_update(nowait=True, key_share=True)  # as UPDATE
    with database.begin() as session:
        begin(session, Principal(tenant.tenant_id, "key", frozenset()), NewMergedModel(adapter_id=adapter_id))
        with pytest.raises(OperationalError, match="could not obtain lock"), database.begin() as other:
            other.execute(delete)


def test_requests_that_cannot_be_met_say_so(tenant, new_tenant, adapter_of, merge, database):
    adapter_id = adapter_of(tenant)

    def refusal(who=tenant, **said):
        answer = who.post("/v1/merged-models", json={"adapter_id": adapter_id} | said)
        return answer.status_code, answer.json()["code"]

    def change(row, which, **values):
        with database.begin() as session:
            session.execute(update(row).where(which).values(**values))

    own, small = Tenant.id == tenant.tenant_id, BaseModel.name == "small"
    assert refusal(new_tenant()) == (404, "not_found")
    assert refusal(max_shard_bytes=10) == (422, "invalid")
    change(Tenant, own, stored_bytes_quota=14_000_000)
    assert refusal() == (403, "quota_exceeded")
    change(Tenant, own, stored_bytes_quota=None)
    change(BaseModel, small, revision="b" * 64)
    assert refusal() == (409, "base_changed")
    change(BaseModel, small, revision="a" * 64)
    for _ in range(MOST_OPEN):
        merge(tenant)
    assert refusal() == (403, "quota_exceeded")


def test_a_base_is_neither_changed_nor_removed_under_a_merge_of_it(tenant, merge, database):
    parts = {"name": "own", "source": "/nowhere/own", "architecture": "LlamaForCausalLM", "parameters": 1, "max_position": 128}

    def allowed(revision):
        with database.begin() as session:
            model_catalog.allow(session, BaseModel(**parts, revision=revision * 64, enabled=True, gated=False))

    def removed():
        with database.begin() as session:
            model_catalog.remove(session, "own")

    def change(row, which, **values):
        with database.begin() as session:
            session.execute(update(row).where(which).values(**values))

    merged_id = merge(tenant)
    allowed("a")
    change(MergedModel, MergedModel.id == merged_id, base_model="own")
    allowed("a")
    for attempt in (lambda: allowed("b"), removed):
        with pytest.raises(model_catalog.RevisionInUse, match=f"needed by the merge {merged_id}, which has not ended"):
            attempt()
    change(BaseModel, BaseModel.name == "own", revision="b" * 64)
    allowed("a")  # which the merge waits for
    assert tenant.delete(f"/v1/merged-models/{merged_id}").is_success
    allowed("c")
    removed()
