"""A stored answer that cannot be read is told to who repeats the request: it has taken effect, and does so once."""

import secrets

import pytest

from service.idempotency.idempotency_store import StoredAnswer


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("headers", value) for value in (3, ["x"], {"etag": 3}, "x")),
        *(("body", value) for value in (3, ["x"], "x")),
        *(("body", value) for value in ({"sealed": 3}, {"sealed": "\u00e9"}, {"sealed": "damaged"})),
    ],
)
def test_a_stored_answer(tenant, damage, column, value):
    keys = [{"idempotency-key": secrets.token_hex(8)} for _ in range(2)]
    spec = tenant.spec(tenant.file())
    made, sound = (tenant.post("/v1/tasks", json=spec, headers=key).json()["id"] for key in keys)
    damage(StoredAnswer, column, value, StoredAnswer.key == keys[0]["idempotency-key"])
    again = tenant.post("/v1/tasks", json=spec, headers=keys[0])
    assert (again.status_code, again.json()["code"]) == (500, "value_unreadable")
    assert "has taken effect" in again.json()["detail"]
    assert tenant.post("/v1/tasks", json=spec, headers=keys[1]).json()["id"] == sound
    assert {task["id"] for task in tenant.get("/v1/tasks").json()["data"]} == {made, sound}


def test_several_answers_of_a_batch_request_under_one_key(tenant, damage):
    key = {"idempotency-key": secrets.token_hex(8)}
    said = {"tasks": [tenant.spec(tenant.file())]}
    batch = tenant.post("/v1/batches", json=said, headers=key).json()["id"]
    damage(StoredAnswer, "body", 3, StoredAnswer.key == key["idempotency-key"])
    again = tenant.post("/v1/batches", json=said, headers=key)
    assert (again.status_code, again.json()["code"]) == (500, "value_unreadable")
    assert [one["id"] for one in tenant.get("/v1/batches").json()["data"]] == [batch]
