"""A push from the request to the commit: what the hub then has, who sees it, what is kept, counted and removed."""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml
from sqlalchemy import select, text, update

from service.background.garbage_collection import KEPT_SECONDS, sweep
from service.background.resealing import run as reseal
from service.background.retention import Retention, forget
from service.database.engine import clock
from service.fleet.models import BaseModel
from service.hub_pushes import push_claims
from service.hub_pushes.models import HubPush
from service.hub_pushes.push_requests import MOST_OPEN
from service.merges.models import MergedModel
from service.tenants.api_keys import Scope
from service.tenants.member_roles import Role
from tests.hub.hub_process import TOKEN
from tests.service.hub_pushes.pushing import CONFIG, ask, asked, content, history, new_name, requests, seen, tree
from tests.service.live_server import until
from tests.service.lock_waits import waiting_for_locks


def test_from_the_request_to_the_commit(tenant, hub, courier, pushable, database, logged):
    adapter_id, name = pushable(tenant), new_name()
    made = asked(tenant, adapter_id, name, message="the winner")
    assert (made["status"], made["sent_bytes"], made["commit"], made["error"]) == ("queued", 0, None, None)
    assert (made["revision"], made["private"], made["url"]) == ("main", True, f"{hub.url}/{name}/tree/main")
    assert {file["path"] for file in made["files"]} == {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert courier.work_off_due() == 1
    done = seen(tenant, made)
    assert (done["error"], done["status"], done["sent_bytes"]) == (None, "succeeded", done["bytes"])
    held = hub.held(name)
    assert (held["private"], held["commits"]["main"], history(hub, name)) == (
        True,
        done["commit"],
        ["the winner", "initial commit"],
    )
    there = tree(hub, name)
    sums = {file["path"]: file["sha256"] for file in done["files"]}
    assert there["adapter_model.safetensors"]["lfs"]
    assert {path: hashlib.sha256(content(hub, name, path)).hexdigest() for path in there} == sums
    assert content(hub, name, "adapter_config.json") == CONFIG
    assert tenant.get("/v1/hub-pushes").json()["data"] == [done]
    with database.begin() as session:
        assert session.scalar(select(HubPush.sealed).where(HubPush.id == made["id"])) is None
    assert TOKEN not in logged()
    put = [line for line in hub.requests if line[0].startswith("/lfs/put")]
    assert {line[2] for line in put} == {"anonymous"}, "a presigned URL gets no token"


def test_the_model_card_names_the_base_where_the_hub_knows_it(tenant, hub, courier, pushable, database):
    def card(**more):
        name = new_name()
        asked(tenant, pushable(tenant), name, **more)
        courier.work_off_due()
        said = content(hub, name, "README.md").decode()
        assert said.startswith("---\n")
        return yaml.safe_load(said[4:].partition("\n---\n")[0]), said

    header, text_ = card()
    assert header == {"library_name": "peft", "pipeline_tag": "text-generation", "tags": ["lora"]}
    assert "LoRA" in text_
    assert card(base_model="meta-llama/Llama-3.2-1B")[0]["base_model"] == "meta-llama/Llama-3.2-1B"
    with database.begin() as session:
        session.execute(update(BaseModel).where(BaseModel.name == "small").values(source="hf://org/small"))
    assert card()[0]["base_model"] == "org/small"
    with database.begin() as session:
        session.execute(update(BaseModel).where(BaseModel.name == "small").values(source="small"))


def test_what_the_hub_has_is_not_sent_again_and_nothing_new_is_no_commit(tenant, hub, courier, pushable):
    adapter_id, name = pushable(tenant, seed=1), new_name()
    first = asked(tenant, adapter_id, name)
    courier.work_off_due()
    again, before = asked(tenant, adapter_id, name), len(hub.requests)
    courier.work_off_due()
    assert seen(tenant, again)["commit"] == seen(tenant, first)["commit"]
    assert requests(hub, before, "/commit/") == requests(hub, before, "/lfs/") == []
    elsewhere, before = asked(tenant, adapter_id, new_name()), len(hub.requests)
    courier.work_off_due()
    assert seen(tenant, elsewhere)["status"] == "succeeded"
    assert requests(hub, before, "/lfs/put") == [], "its object is there, under the same sha256"
    assert len(requests(hub, before, "/commit/")) == 1


def test_a_branch_is_made_and_others_files_stay(tenant, hub, courier, pushable):
    adapter_id, name = pushable(tenant), new_name()
    asked(tenant, adapter_id, name)
    courier.work_off_due()
    other = asked(tenant, pushable(tenant, seed=2), name, revision="trials/2")
    courier.work_off_due()
    assert seen(tenant, other)["status"] == "succeeded"
    assert len(history(hub, name)) == 2
    assert len(history(hub, name, "trials/2")) == 3
    weights = "adapter_model.safetensors"
    assert tree(hub, name)[weights] != tree(hub, name, "trials/2")[weights]
    assert f"{name}/tree/trials/2" in seen(tenant, other)["url"]


def test_a_merged_model_is_pushed_once_it_is_ready(tenant, hub, courier, pushable, database, storage):
    merged = tenant.post("/v1/merged-models", json={"adapter_id": pushable(tenant)}).json()["id"]
    said = {"merged_model_id": merged, "repository": new_name(), "token": TOKEN}
    early = tenant.post("/v1/hub-pushes", json=said)
    assert (early.status_code, early.json()["code"]) == (409, "merged_model_not_ready")
    listed = []
    for path, part in (("README.md", b"# merged\n"), ("config.json", b"{}"), ("model.safetensors", b"\0shard" * 500)):
        incoming = storage.receive()
        incoming.write(part)
        listed.append({"path": path, "sha256": incoming.commit().sha256, "bytes": len(part)})
    with database.begin() as session:
        row = session.get_one(MergedModel, merged)
        row.status, row.files, row.ended_at = "ready", listed, clock(session)
    made = tenant.post("/v1/hub-pushes", json=said)
    assert made.status_code == 201, made.text
    assert tenant.delete(f"/v1/merged-models/{merged}").status_code == 204
    courier.work_off_due()
    assert (seen(tenant, made.json())["status"], made.json()["adapter_id"]) == ("succeeded", None)
    assert content(hub, said["repository"], "model.safetensors") == b"\0shard" * 500
    assert content(hub, said["repository"], "README.md") == b"# merged\n"


def test_an_uploaded_adapter_is_pushed_and_its_deletion_stops_nothing(
    tenant, hub, courier, pushable, database, storage, settings
):
    adapter_id, name = pushable(tenant, seed=3), new_name()
    made = asked(tenant, adapter_id, name)
    with database.begin() as session:
        session.execute(text("UPDATE adapters SET deleted_at = now() WHERE id = :id"), {"id": adapter_id})
    for stored in list(storage.keys()):
        path = storage.path(stored.sha256)
        moment = path.stat().st_mtime - KEPT_SECONDS - 60
        os.utime(path, (moment, moment))
    sweep(database, storage)
    assert all(storage.exists(file["sha256"]) for file in made["files"])
    assert tenant.get(f"/v1/adapters/{adapter_id}").status_code == 404
    courier.work_off_due()
    assert seen(tenant, made)["status"] == "succeeded"
    sweep(database, storage)
    weights = next(file["sha256"] for file in made["files"] if file["path"] == "adapter_model.safetensors")
    assert not storage.exists(weights), "an ended push keeps nothing"
    assert ask(tenant, adapter_id, name).json()["code"] == "adapter_deleted"


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"repository": "name"}, "repository", ""),
        ({"repository": "org/a--b"}, "repository", "Cannot have --"),
        ({"repository": "org/name.git"}, "repository", "git"),
        ({"repository": f"org/{'x' * 97}"}, "repository", "96"),
        ({"repository": "org/../api"}, "repository", ""),
        ({"base_model": "a/b..c"}, "base_model", "Cannot have"),
        ({"revision": "c0ffee" + "0" * 34}, "revision", "must be a branch"),
        ({"revision": "refs/pr/1"}, "revision", "must be a branch"),
        ({"token": "hf_x\r\nHost: evil"}, "token", "printable ASCII"),
        ({"token": None}, "token", ""),
        ({"message": "a\0b"}, "message", ""),
        ({"adapter_id": None}, "adapter_id", "exactly one of 'adapter_id' and 'merged_model_id'"),
        ({"merged_model_id": "merged_1"}, "adapter_id", "exactly one of 'adapter_id' and 'merged_model_id'"),
    ],
)
def test_wrong_requests_are_refused_by_their_field(tenant, pushable, hub, changes, field, words):
    before = len(hub.requests)
    said = {"adapter_id": "adapter_x", "repository": "org/name", "token": TOKEN} | changes
    answer = tenant.post("/v1/hub-pushes", json={name: value for name, value in said.items() if value is not None})
    assert answer.status_code == 422, answer.text
    error = answer.json()["errors"][0]
    assert error.get("field") == field
    assert words in error["message"]
    assert TOKEN not in answer.text
    assert len(hub.requests) == before


def test_who_may_ask_and_see_and_what_the_audit_says(tenant, new_tenant, new_member, pushable, hub, courier):
    other, reader = new_tenant(), new_member(Role.VIEWER, of=tenant)
    made = asked(tenant, pushable(tenant), new_name())
    assert other.get(f"/v1/hub-pushes/{made['id']}").status_code == 404
    assert other.delete(f"/v1/hub-pushes/{made['id']}").status_code == 404
    assert other.get("/v1/hub-pushes").json()["data"] == []
    assert ask(other, made["adapter_id"], new_name()).status_code == 404
    assert ask(reader, made["adapter_id"], new_name()).status_code == 403
    assert seen(reader, made)["id"] == made["id"]
    editor = new_member(Role.EDITOR, of=tenant)
    pushed = asked(editor, made["adapter_id"], new_name())
    entry = tenant.get("/v1/audit?action=create_hub_push").json()["data"][0]
    assert entry["targets"] == [pushed["id"]]
    assert entry["user_id"] == editor.get("/v1/me").json()["user_id"]
    assert "@example.com" in entry["actor"]
    assert new_tenant(Scope.READ).post("/v1/hub-pushes", json={}).status_code == 403


def test_a_tenant_has_so_many_open_at_once_and_one_at_work(tenant, new_tenant, pushable, hub, dependencies, courier):
    adapter_id, other = pushable(tenant), new_tenant()
    mine = [asked(tenant, adapter_id, new_name()) for _ in range(MOST_OPEN)]
    refused = ask(tenant, adapter_id, new_name())
    assert (refused.status_code, refused.json()["quota"], refused.json()["limit"]) == (403, "pushes_at_once", MOST_OPEN)
    theirs = asked(other, pushable(other), new_name())
    claims = courier._claims
    taken = [claims.take(), claims.take(), claims.take()]
    assert [one.id if one is not None else None for one in taken] == [mine[0]["id"], theirs["id"], None]
    assert seen(tenant, mine[0])["status"] == "running"


def test_processes_that_claim_at_one_moment_take_one_of_a_tenant(tenant, pushable, database, courier):
    adapter_id, rows = pushable(tenant), push_claims._ROWS
    mine = [asked(tenant, adapter_id, new_name()) for _ in range(2)]

    with ThreadPoolExecutor(1) as pool:
        with database.begin() as session:
            first = rows.due(session, one_a_tenant=True)
            assert rows.take(session, first, {}) is not None
            session.flush()
            second = pool.submit(courier._claims.take)
            until(lambda: second.done() or waiting_for_locks(database))
            assert first.id == mine[0]["id"]
        assert second.result() is None, "the tenant has one claimed"


def test_an_idempotency_key_pushes_once(tenant, pushable):
    adapter_id, name = pushable(tenant), new_name()
    said = {"adapter_id": adapter_id, "repository": name, "token": TOKEN}
    one, two = (tenant.post("/v1/hub-pushes", json=said, headers={"Idempotency-Key": "once"}) for _ in range(2))
    assert one.json() == two.json()
    assert len(tenant.get("/v1/hub-pushes").json()["data"]) == 1


def test_what_is_deleted_is_given_up(tenant, pushable, hub, courier):
    name = new_name()
    made = asked(tenant, pushable(tenant), name)
    assert tenant.delete(f"/v1/hub-pushes/{made['id']}").status_code == 204
    assert tenant.get(f"/v1/hub-pushes/{made['id']}").status_code == 404
    assert courier.work_off_due() == 0
    assert not (hub.folder / name).exists()


def test_ended_pushes_are_forgotten_and_tokens_resealed(tenant, pushable, hub, courier, database, settings, dependencies):
    made, waits = (asked(tenant, pushable(tenant, seed=seed), new_name()) for seed in (4, 5))
    newer = settings.model_copy(
        update={"secret_keys_before": (settings.secret_key,), "secret_key": type(settings.secret_key)("n" * 64)}
    )
    reseal(newer)
    courier.work_off_due()
    assert seen(tenant, waits)["error"]["code"] == "token_lost", "it opens under the newer key alone"
    assert seen(tenant, made)["error"]["code"] == "token_lost"
    with database.begin() as session:
        session.execute(update(HubPush).values(ended_at=clock(session) - Retention().deleted * 2))
    forget(database, Retention())
    assert tenant.get("/v1/hub-pushes").json()["data"] == []


def test_a_service_that_is_offline_asks_nobody(serve, settings_for, new_database_url, tmp_path):
    caller = serve(settings_for(new_database_url, tmp_path))
    answer = caller.post("/v1/hub-pushes", json={"adapter_id": "adapter_x", "repository": "org/name", "token": TOKEN})
    assert (answer.status_code, answer.json()["code"]) == (409, "hub_offline")
    assert TOKEN not in json.dumps(answer.json())
