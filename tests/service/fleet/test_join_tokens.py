"""Joining: by a token that an admin made for this node, once and in time; and again by the node's own credential alone."""

import secrets
import threading
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from service.database.engine import clock
from service.fleet import join_tokens
from service.fleet.models import JoinToken, Node
from tests.service.fleet.fixtures import join_token
from tests.service.fleet.rows import dump
from tests.service.fleet.scripted import ScriptedNode, devices


def refusal(answer) -> str:
    assert (answer.status_code, answer.json()["code"]) == (401, "join_refused"), answer.text
    return str(answer.json()["detail"])


def credential() -> str:
    return "nc_" + secrets.token_urlsafe(32)


def test_an_admin_makes_a_token_that_lets_its_node_in_once(admin, client, database, nothing_left):
    with database.begin() as session:
        began = clock(session)
    made = admin.post("/v1/admin/join-tokens", json={"node_name": "gpu-7", "expires_in_seconds": 600})
    assert made.status_code == 201, made.text
    token = made.json()
    with database.begin() as session:
        row = session.scalars(select(JoinToken)).one()
        assert token["secret"].encode() not in row.hash
        assert began <= row.expires_at - timedelta(seconds=600) <= clock(session)
    node = ScriptedNode(client, token["secret"], "gpu-7").register()
    assert node.beat().status_code == 200
    (listed,) = admin.get("/v1/admin/join-tokens").json()["data"]
    assert (listed["id"], listed["node_name"], listed["secret"]) == (token["id"], "gpu-7", None)
    assert listed["used_at"] is not None
    before = dump(database)
    said = refusal(ScriptedNode(client, token["secret"], "gpu-7").ask_to_join(token["secret"]))
    assert "was used" in said
    assert "POST /v1/admin/join-tokens" in said
    assert dump(database) == before
    assert node.beat().status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "node_name"),
        ({"node_name": "a b"}, "node_name"),
        ({"node_name": "x" * 64}, "node_name"),
        ({"node_name": "-x"}, "node_name"),
        ({"node_name": "*"}, "node_name"),
        ({"node_name": "gpu-*-a"}, "node_name"),
        ({"node_name": "x" * 63 + "*"}, "node_name"),
        ({"node_name": "x", "expires_in_seconds": 59}, "expires_in_seconds"),
        ({"node_name": "x", "expires_in_seconds": 365 * 86400 + 1}, "expires_in_seconds"),
        ({"node_name": "x", "expires_in_seconds": "soon"}, "expires_in_seconds"),
        ({"node_name": "x", "lifetime": 9}, "lifetime"),
    ],
)
def test_a_wrong_wish_for_a_token_names_its_field(admin, body, field):
    answer = admin.post("/v1/admin/join-tokens", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field


def test_only_admins_make_see_and_revoke_them(admin, tenant, client, database, nothing_left):
    assert tenant.post("/v1/admin/join-tokens", json={"node_name": "x"}).status_code == 403
    assert tenant.get("/v1/admin/join-tokens").status_code == 403
    token = admin.post("/v1/admin/join-tokens", json={"node_name": "x"}).json()
    assert tenant.delete(f"/v1/admin/join-tokens/{token['id']}").status_code == 403
    assert admin.delete(f"/v1/admin/join-tokens/{token['id']}").status_code == 200
    assert admin.delete(f"/v1/admin/join-tokens/{token['id']}").status_code == 404
    assert "no join token" in refusal(ScriptedNode(client, "", "x").ask_to_join(token["secret"]))


def test_what_is_no_token_of_this_node_lets_nobody_in(client, database, nothing_left):
    token = join_token(database, "meant")
    before = dump(database)
    for bearer in ("x", token[:-1], token + "x", "mk_" + "x" * 40):
        assert "no join token of a node named meant" in refusal(ScriptedNode(client, "", "meant").ask_to_join(bearer))
    assert "for a node named meant, not other" in refusal(ScriptedNode(client, "", "other").ask_to_join(token))
    said = {"name": "meant", "boot_id": "b" * 8, "devices": devices(1)}
    assert "Bearer" in refusal(client.post("/internal/v1/nodes", json=said))
    assert dump(database) == before


def test_a_token_expires(client, database, nothing_left):
    token = join_token(database, "late")
    with database.begin() as session:
        session.execute(update(JoinToken).values(expires_at=clock(session)))
    assert "expired" in refusal(ScriptedNode(client, "", "late").ask_to_join(token))
    join_token(database, "late")  # the next one takes the place of what nobody can use
    with database.begin() as session:
        assert len(session.scalars(select(JoinToken)).all()) == 1


def test_a_token_that_many_use_at_once_lets_one_in(client, database, nothing_left):
    token, codes = join_token(database, "raced"), []
    ask = lambda: codes.append(ScriptedNode(client, "", "raced").ask_to_join(token).status_code)  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [201, *[401] * 5]


def test_a_known_name_needs_its_nodes_credential(client, new_node, database):
    node, other = new_node("known"), new_node("other")
    stranger = ScriptedNode(client, "", "known")
    for bearer in (node.join_token, other.credential, other.join_token, credential()):
        refusal(stranger.ask_to_join(bearer))
    assert node.beat().status_code == 200
    old = node.credential
    node.reboot()
    assert node.credential != old
    refusal(stranger.ask_to_join(old))
    assert node.beat().status_code == 200


def test_a_node_that_lost_its_credential_gets_in_by_a_new_token_and_locks_the_old_one_out(client, new_node, database):
    node = new_node("forgetful")
    fresh = ScriptedNode(client, join_token(database, "forgetful"), "forgetful").register()
    assert fresh.id == node.id
    assert node.beat().status_code == 401
    refusal(node.ask_to_join(node.credential))
    assert fresh.beat().status_code == 200


def test_a_node_that_was_lost_registers_by_its_credential(new_node, database):
    node = new_node()
    with database.begin() as session:
        session.execute(update(Node).values(status="lost"))
    assert node.beat().status_code == 401
    assert node.register().beat().status_code == 200


def test_a_proposed_credential_is_the_nodes_from_then_on_though_no_answer_came(client, database, nothing_left):
    node, proposed = ScriptedNode(client, join_token(database, "proposes"), "proposes"), credential()
    node.ask_to_join(node.join_token, credential=proposed)  # and its answer gets lost, with the process that asked
    refusal(node.ask_to_join(node.join_token, credential=credential()))
    answer = node.ask_to_join(proposed, credential=(following := credential()))
    assert answer.json()["credential"] == following
    refusal(node.ask_to_join(proposed))


@pytest.mark.parametrize("proposed", ["nc_short", "x" * 60, "nc_" + "a" * 101, "nc_" + "ü" * 50, ""])
def test_a_credential_that_could_be_guessed_is_refused(client, database, nothing_left, proposed):
    node = ScriptedNode(client, join_token(database, "weak"), "weak")
    answer = node.ask_to_join(node.join_token, credential=proposed)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "credential"
    assert node.register().beat().status_code == 200


def test_an_operators_own_token_works_once_however_often_it_is_provided(client, database, nothing_left):
    token, hour = secrets.token_hex(32), timedelta(hours=1)

    def provide() -> bool:
        with database.begin() as session:
            return join_tokens.provide(session, "set-up", token, hour)

    assert [provide(), provide()] == [True, False]
    with database.begin() as session:
        session.execute(update(JoinToken).values(expires_at=clock(session)))
    assert provide(), "nobody has used it: the worker came up late"
    node = ScriptedNode(client, token, "set-up").register()
    assert not provide()
    refusal(ScriptedNode(client, "", "set-up").ask_to_join(token))
    assert node.beat().status_code == 200


def test_a_reusable_token_lets_in_whoever_comes_under_its_prefix_until_it_ends(admin, client, database, nothing_left):
    made = admin.post("/v1/admin/join-tokens", json={"node_name": "pod-*", "expires_in_seconds": 365 * 86400}).json()
    token = made["secret"]
    assert made["reusable"]
    nodes = [ScriptedNode(client, token, f"pod-{number}").register() for number in range(3)]
    assert all(node.beat().status_code == 200 for node in nodes)
    assert "for nodes named pod-*, not other" in refusal(ScriptedNode(client, "", "other").ask_to_join(token))
    assert nodes[0].register().beat().status_code == 200, "by its own credential, as any node"
    (listed,) = admin.get("/v1/admin/join-tokens").json()["data"]
    assert listed["used_at"] is not None
    with database.begin() as session:
        session.execute(update(JoinToken).values(expires_at=clock(session)))
    assert "pod-* expired" in refusal(ScriptedNode(client, "", "pod-9").ask_to_join(token))
    assert nodes[1].register().beat().status_code == 200
    assert admin.delete(f"/v1/admin/join-tokens/{made['id']}").status_code == 200
    assert "no join token" in refusal(ScriptedNode(client, "", "pod-9").ask_to_join(token))


def test_a_reusable_token_opens_the_name_of_a_node_only_while_it_is_away(client, database, nothing_left):
    token = join_token(database, "pod-*")
    before = ScriptedNode(client, token, "pod-0").register()
    assert "is ready" in refusal(ScriptedNode(client, "", "pod-0").ask_to_join(token))
    assert before.beat().status_code == 200
    with database.begin() as session:
        session.execute(update(Node).values(status="lost"))
    fresh = ScriptedNode(client, token, "pod-0").register()  # its disk went with the pod
    assert fresh.id == before.id
    assert fresh.beat().status_code == 200
    refusal(before.ask_to_join(before.credential))


def test_an_operators_reusable_token_is_rotated_by_providing_another(client, database, nothing_left):
    old, new, year = secrets.token_hex(32), secrets.token_hex(32), timedelta(days=365)

    def provide(name: str, token: str) -> bool:
        with database.begin() as session:
            return join_tokens.provide(session, name, token, year)

    provide("pod-0", old)  # as an earlier chart had it
    ScriptedNode(client, old, "pod-0").register()
    assert [provide("pod-*", old), provide("pod-*", old)] == [True, False]
    with database.begin() as session:
        session.execute(update(Node).values(status="lost"))
    joined = [ScriptedNode(client, old, name).register() for name in ("pod-0", "pod-1")]
    assert provide("pod-*", new)
    assert "for a node named pod-0, not pod-2" in refusal(ScriptedNode(client, "", "pod-2").ask_to_join(old))
    assert ScriptedNode(client, new, "pod-2").register().beat().status_code == 200
    assert all(node.register().beat().status_code == 200 for node in joined)
    with database.begin() as session:
        session.execute(update(JoinToken).values(expires_at=clock(session)))
    assert provide("pod-*", new), "each start of bootstrap renews it"
    ScriptedNode(client, new, "pod-3").register()
