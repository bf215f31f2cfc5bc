"""What a hub refuses, in words; and that nothing is sent to a repository that others may read where it was to be private."""

import json

import pytest

from tests.hub.hub_process import TOKEN
from tests.service.hub_pushes.pushing import asked, history, new_name, requests, seen


def refused(status, headers=None, error="", often=99, at="/api/models/"):
    return {"refuse": {at: [status, headers or {}, json.dumps({"error": error}), often]}}


@pytest.mark.parametrize(
    ("faults", "code", "words"),
    [
        (refused(401, error="Invalid username or password."), "hub_token_refused", "does not know the token: Invalid username"),
        (refused(403, error=f"no right, {TOKEN}"), "hub_forbidden", "needs the right to write to org/"),
        (refused(403, {"X-Error-Code": "GatedRepo"}), "hub_gated", "accept its terms at http://"),
        (refused(402, error="Payment required"), "hub_quota", "has no room"),
        (refused(403, error="Private repository storage limit reached", at="batch$"), "hub_quota", "storage limit reached"),
        (
            refused(307, {"Location": "/api/models/org/other?x=y"}),
            "hub_redirects",
            "(/api/models/org/other): redirects",
        ),
        (refused(400, error="invalid README", at="/commit/"), "hub_refused", "answers 400 for org/"),
        (refused(413, error="the file is too large", at="batch$"), "hub_refused", "the file is too large"),
        (refused(301, {"Location": "http://169.254.169.254/"}, at="PUT "), "hub_redirects", "redirects an upload"),
    ],
)
def test_a_refusal_is_final_and_told_in_words(tenant, hub, courier, pushable, logged, faults, code, words):
    made = asked(tenant, pushable(tenant, seed=sum(map(ord, code + words))), new_name())
    hub.faults(**faults)
    courier.work_off_due()
    failed = seen(tenant, made)
    assert (failed["status"], failed["error"]["code"], failed["attempts"]) == ("failed", code, 1)
    assert words in failed["error"]["detail"]
    assert TOKEN not in json.dumps(failed) + logged()


@pytest.mark.parametrize("status", [429, 500, 503, 409])
def test_what_may_pass_is_tried_again(tenant, hub, courier, pushable, due_now, status):
    made = asked(tenant, pushable(tenant, seed=status), new_name())
    hub.faults(**refused(status, error="busy", often=1, at=r"POST /api/models/.*/preupload"))
    courier.work_off_due()
    waits = seen(tenant, made)
    assert (waits["status"], waits["error"]["code"], waits["next_attempt_at"] > waits["created_at"]) == (
        "queued",
        "hub_unavailable",
        True,
    )
    hub.faults()
    due_now()
    courier.work_off_due()
    assert (seen(tenant, made)["status"], seen(tenant, made)["error"]) == ("succeeded", None)


def test_a_token_that_may_not_write_and_one_that_is_none(tenant, hub, courier, pushable):
    adapter_id, name = pushable(tenant), new_name()
    reads = asked(tenant, adapter_id, name, token="hf_reads_only")
    courier.work_off_due()
    assert seen(tenant, reads)["error"]["code"] == "hub_forbidden"
    assert not (hub.folder / name).exists()
    none = asked(tenant, adapter_id, name, token="hf_nobody")
    courier.work_off_due()
    assert seen(tenant, none)["error"]["code"] == "hub_token_refused"
    elsewhere = asked(tenant, adapter_id, "others/name")
    courier.work_off_due()
    assert "namespace others" in seen(tenant, elsewhere)["error"]["detail"]


def test_what_was_to_be_private_goes_to_no_public_repository(tenant, hub, courier, pushable):
    adapter_id, name = pushable(tenant, seed=20), new_name()
    public = asked(tenant, adapter_id, name, private=False)
    courier.work_off_due()
    assert (seen(tenant, public)["status"], hub.held(name)["private"]) == ("succeeded", False)
    before = len(hub.requests)
    made = asked(tenant, pushable(tenant, seed=21), name)
    courier.work_off_due()
    failed = seen(tenant, made)["error"]
    assert failed["code"] == "repository_public"
    assert '"private": false' in failed["detail"]
    assert requests(hub, before, "/lfs/") == requests(hub, before, "/commit/") == []
    hub.faults(public=True)  # a hub that makes everything public
    other = new_name()
    made = asked(tenant, pushable(tenant, seed=22), other)
    courier.work_off_due()
    assert (seen(tenant, made)["error"]["code"], history(hub, other)) == ("repository_public", ["initial commit"])


def test_a_gitignore_that_leaves_a_file_out_is_told(tenant, hub, courier, pushable):
    name = new_name()
    asked(tenant, pushable(tenant, seed=23), name)
    courier.work_off_due()
    held = hub.held(name) | {"ignored": ["adapter_config.json"]}
    (hub.folder / name / "hub.json").write_text(json.dumps(held))
    made = asked(tenant, pushable(tenant, seed=24), name)
    courier.work_off_due()
    assert seen(tenant, made)["error"]["code"] == "hub_ignores"
    assert "adapter_config.json" in seen(tenant, made)["error"]["detail"]


@pytest.mark.parametrize("left", [None, 600])
def test_bytes_that_storage_lost_are_told(tenant, hub, courier, pushable, storage, left):
    made = asked(tenant, pushable(tenant, size=16, seed=left or 25), new_name())
    sha256 = next(file["sha256"] for file in made["files"] if file["path"].endswith("safetensors"))
    if left is None:
        storage.delete(sha256)
    else:
        path = storage.path(sha256)
        path.write_bytes(path.read_bytes()[:left])
    courier.work_off_due()
    assert seen(tenant, made)["error"]["code"] == "object_lost"


@pytest.mark.parametrize("body", ["<html>", "[]", '{"sha": 5, "private": "no"}', '{"private": true, "sha": "x"}'])
def test_a_server_that_is_no_hub_is_told(tenant, hub, courier, pushable, body):
    made = asked(tenant, pushable(tenant, seed=26), new_name())
    hub.faults(refuse={"/api/models/": [200, {}, body, 99]})
    courier.work_off_due()
    assert "is HF_ENDPOINT a hub?" in seen(tenant, made)["error"]["detail"]
