"""What each role may do, on every route of the API; members managed by owners, and what that takes away at once."""

import re
import threading

import httpx
import pytest
from sqlalchemy import select

from service.tenants.api_keys import RIGHTS_CHANGED, Scope
from service.tenants.member_roles import Role, lower, scopes_of
from service.tenants.models import ApiKey, BrowserSession, Invitation, Membership
from tests.service.api import Caller
from tests.service.live_server import PATIENCE, live, until
from tests.service.tenants.test_tenant_isolation import ADMINS, OPEN, READING, READING_POSTS, code_of, public_routes

OWNERS = re.compile(r"/v1/(members|invitations|service-accounts)")
EVERY_MEMBER = {  # in a member's own right, or for members to see
    *(("GET", "/v1/members"), ("GET", "/v1/service-accounts"), ("POST", "/v1/keys"), ("DELETE", "/v1/keys/{key_id}")),
    *(("DELETE", "/v1/members/{user_id}"), ("DELETE", "/v1/members/{user_id}/sessions")),
}


def me(caller: Caller) -> dict:
    return caller.get("/v1/me").json()


def test_roles_are_in_one_order_and_never_admin():
    assert [lower(one, other) for one in Role for other in Role] == [
        *(Role.VIEWER, Role.VIEWER, Role.VIEWER),
        *(Role.VIEWER, Role.EDITOR, Role.EDITOR),
        *(Role.VIEWER, Role.EDITOR, Role.OWNER),
    ]
    assert not [role for role in Role if Scope.ADMIN in scopes_of(role)]
    assert scopes_of(Role.VIEWER) < scopes_of(Role.EDITOR) <= scopes_of(Role.OWNER)


@pytest.mark.parametrize("role", Role)
def test_every_route_wants_its_role(app, new_member, role):
    member, seen = new_member(role), 0
    for method, path in public_routes(app.routes):
        if path in OPEN:
            continue
        reads = method in READING or path in READING_POSTS or (method, path) in EVERY_MEMBER
        of_platform = path.startswith(ADMINS) or (method, path) == ("POST", "/v1/models")
        of_owners = OWNERS.match(path) and (method, path) not in EVERY_MEMBER
        response = member.request(method, re.sub(r"{.*?}", "x", path))
        code = code_of(response) if response.status_code == 403 else None
        if of_platform or (role is Role.VIEWER and not reads):
            assert code == "scope_missing", f"{method} {path} as {role}: {response.status_code} {response.text}"
        elif of_owners and role is not Role.OWNER:
            assert code == "role_missing", f"{method} {path} as {role}: {response.status_code} {response.text}"
        elif "{user_id}" not in path:  # others' sessions and memberships are below
            assert code is None, f"{method} {path} as {role}: {response.text}"
        seen += 1
    assert seen > 60


def test_a_viewer_reads_what_an_editor_makes(new_member):
    editor = new_member(Role.EDITOR)
    viewer = new_member(Role.VIEWER, of=editor)
    task = editor.task()
    assert viewer.get(f"/v1/tasks/{task['id']}").status_code == 200
    assert viewer.post("/v1/tasks", json=viewer.spec(task["spec"]["dataset"]["file_id"])).status_code == 403
    assert viewer.upload(b"{}").status_code == 403


def test_who_calls(new_member, tenant):
    said = me(new_member(Role.VIEWER, subject="ada"))
    assert (said["role"], said["scopes"], said["label"]) == ("viewer", ["read"], "ada@example.com")
    assert [(one["id"], one["role"]) for one in said["tenants"]] == [(said["tenant_id"], "viewer")]
    said = me(tenant)
    assert (said["role"], said["user_id"], said["scopes"]) == (None, None, ["read", "write"])


def test_owners_manage_their_own_members(new_member):
    owner = new_member(Role.OWNER)
    editor = new_member(Role.EDITOR, of=owner)
    listed = owner.get("/v1/members").json()["data"]
    assert [one["role"] for one in listed] == ["editor", "owner"]
    path = f"/v1/members/{me(editor)['user_id']}"
    assert owner.patch(path, json={"role": "viewer"}).json()["role"] == "viewer"
    assert editor.post("/v1/files").status_code == 403  # with the key that it had before
    assert owner.patch(path, json={"role": "owner"}).json()["role"] == "owner"
    assert me(editor)["role"] == "editor"  # a key is bounded by what it was made for too
    assert owner.patch(path, json={"role": "admin"}).json()["errors"][0]["field"] == "role"
    assert owner.delete(path).json()["user_id"] == path.rpartition("/")[2]
    refused = editor.get("/v1/tasks")
    assert (refused.status_code, refused.json()["code"]) == (401, "key_refused")
    assert owner.delete(path).status_code == 404


def test_a_member_may_leave_and_remove_nobody_else(new_member):
    owner = new_member(Role.OWNER)
    editor, viewer = (new_member(role, of=owner) for role in (Role.EDITOR, Role.VIEWER))
    other = f"/v1/members/{me(viewer)['user_id']}"
    assert editor.delete(other).json()["code"] == "role_missing"
    assert editor.delete(f"{other}/sessions").json()["code"] == "role_missing"
    assert editor.patch(other, json={"role": "owner"}).json()["code"] == "role_missing"
    assert viewer.delete(f"{other}/sessions").status_code == 204
    assert viewer.delete(other).status_code == 200
    assert viewer.get("/v1/me").status_code == 401


def test_a_tenant_keeps_an_owner_also_when_two_step_down_at_once(new_member, database):
    owner = new_member(Role.OWNER)
    path = f"/v1/members/{me(owner)['user_id']}"
    assert owner.delete(path).json()["code"] == "last_owner"
    assert owner.patch(path, json={"role": "editor"}).json()["code"] == "last_owner"
    second = new_member(Role.OWNER, of=owner)
    start, answers = threading.Barrier(2), []

    def step_down(who: Caller) -> None:
        where = f"/v1/members/{me(who)['user_id']}"
        start.wait()
        answers.append(who.patch(where, json={"role": "viewer"}).status_code)

    threads = [threading.Thread(target=step_down, args=(who,)) for who in (owner, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200, 409]
    with database.begin() as session:
        roles = session.scalars(select(Membership.role).where(Membership.tenant_id == owner.tenant_id))
        assert sorted(roles) == ["owner", "viewer"]


def test_an_owner_who_goes_leaves_no_way_back(new_member, database):
    owner = new_member(Role.OWNER)
    going = new_member(Role.OWNER, of=owner)
    made = going.post("/v1/invitations", json={"role": "owner"}).json()
    own = going.post("/v1/keys", json={"role": "owner"}).json()
    assert Caller(going.client, going.tenant_id, own["secret"]).get("/v1/invitations").status_code == 200
    owner.delete(f"/v1/members/{me(going)['user_id']}")
    assert Caller(going.client, going.tenant_id, own["secret"]).get("/v1/me").json()["reason"] == "revoked"
    with database.begin() as session:
        assert session.get_one(Invitation, made["id"]).revoked_at is not None
        left = session.scalars(select(ApiKey).where(ApiKey.tenant_id == owner.tenant_id, ApiKey.revoked_at.is_(None))).all()
        assert {key.user_id for key in left if key.user_id} == {me(owner)["user_id"]}
        assert session.scalars(select(BrowserSession).where(BrowserSession.tenant_id == owner.tenant_id)).all() == []


def test_an_owner_who_is_lowered_has_open_invitations_taken_back(new_member, database):
    """Else the link to an owner's role would be a way back up."""
    owner = new_member(Role.OWNER)
    lowered = new_member(Role.OWNER, of=owner)
    made = [who.post("/v1/invitations", json={"role": role}).json()["id"] for who in (owner, lowered) for role in Role]
    assert owner.patch(f"/v1/members/{me(lowered)['user_id']}", json={"role": "editor"}).json()["role"] == "editor"
    with database.begin() as session:
        open_ones = set(session.scalars(select(Invitation.id).where(Invitation.revoked_at.is_(None))))
    assert open_ones & set(made) == set(made[: len(Role)]), "the other owner's still lead in"


def test_members_make_keys_of_their_own_that_do_no_more_than_they(new_member):
    owner = new_member(Role.OWNER)
    viewer, editor = (new_member(role, of=owner) for role in (Role.VIEWER, Role.EDITOR))
    made = viewer.post("/v1/keys", json={"name": "laptop"}).json()
    assert (made["scopes"], made["role"], made["user_id"]) == (["read"], "viewer", me(viewer)["user_id"])
    assert made["expires_at"] is not None
    assert viewer.post("/v1/keys", json={"scopes": ["write"]}).json()["code"] == "scope_missing"
    assert editor.post("/v1/keys", json={"role": "owner"}).json()["code"] == "role_missing"
    assert owner.post("/v1/keys", json={}).json()["role"] == "editor"  # unless it says owner
    assert viewer.delete(f"/v1/keys/{made['id']}").json()["revoked_at"]
    theirs = editor.post("/v1/keys", json={}).json()["id"]
    new = new_member(Role.EDITOR, of=owner)
    assert new.delete(f"/v1/keys/{theirs}").json()["code"] == "role_missing"
    assert viewer.delete(f"/v1/keys/{theirs}").json()["code"] == "scope_missing"
    assert owner.delete(f"/v1/keys/{theirs}").json()["revoked_at"]


def test_a_tenants_own_key_is_as_before(tenant, new_tenant, new_member):
    made = tenant.post("/v1/keys", json={}).json()
    assert (made["role"], made["user_id"], made["expires_at"]) == (None, None, None)
    assert tenant.post("/v1/keys", json={"role": "editor"}).json()["errors"][0]["field"] == "role"
    assert new_tenant(Scope.READ).post("/v1/keys", json={}).json()["code"] == "scope_missing"
    member = new_member(Role.VIEWER, of=tenant)
    assert tenant.delete(f"/v1/keys/{me(member)['key_id']}").json()["code"] == "role_missing"
    assert tenant.delete(f"/v1/keys/{made['id']}").status_code == 200


def test_service_accounts_outlive_whoever_made_them(new_member, tenant):
    owner = new_member(Role.OWNER, of=tenant)
    second = new_member(Role.OWNER, of=tenant)
    account = owner.post("/v1/service-accounts", json={"name": "ci"}).json()
    path = f"/v1/service-accounts/{account['id']}"
    assert owner.post("/v1/service-accounts", json={"name": "ci"}).json()["code"] == "name_taken"
    assert owner.post("/v1/service-accounts", json={"name": "x", "role": "owner"}).json()["errors"][0]["field"] == "role"
    refused = owner.post(f"{path}/keys", json={"scopes": ["read", "admin"]})
    assert refused.json()["errors"][0]["field"] == "scopes"
    key = owner.post(f"{path}/keys", json={"name": "runner"}).json()
    program = Caller(owner.client, owner.tenant_id, key["secret"])
    assert (me(program)["role"], me(program)["label"]) == ("editor", "service account ci")
    second.delete(f"/v1/members/{me(owner)['user_id']}")
    program.file()
    entry = second.get("/v1/audit?action=create_file").json()["data"][0]
    assert (entry["actor"], entry["user_id"]) == ("service account ci", None)
    assert program.post("/v1/invitations", json={}).json()["code"] == "role_missing"
    made = program.post("/v1/keys", json={}).json()
    assert made["service_account_id"] == account["id"]
    second.patch(path, json={"role": "viewer"})
    assert program.upload(b"{}").json()["code"] == "scope_missing"
    second.delete(path)
    for secret in (key["secret"], made["secret"]):
        assert Caller(owner.client, owner.tenant_id, secret).get("/v1/me").json()["reason"] == "revoked"
    assert second.post("/v1/service-accounts", json={"name": "ci"}).status_code == 201  # the name is free again


def test_the_audit_log_names_the_member(new_member):
    owner = new_member(Role.OWNER, subject="grace")
    owner.post("/v1/invitations", json={"email": "new@example.com"})
    owner.file()
    told = owner.get("/v1/audit").json()["data"]
    assert [entry["action"] for entry in told] == ["create_file", "create_invitation"]
    assert {(entry["actor"], entry["user_id"]) for entry in told} == {("grace@example.com", me(owner)["user_id"])}


def test_the_platforms_admin_invites_the_first_owner_and_replaces_a_lost_one(admin, tenant, new_member):
    path = f"/v1/admin/tenants/{tenant.tenant_id}"
    made = admin.post(f"{path}/invitations", json={"role": "owner", "email": "first@example.com"})
    assert made.status_code == 201, made.text
    assert made.json()["url"].startswith("http://testserver/invitations/mi_")
    owner = new_member(Role.OWNER, of=tenant)
    (member,) = admin.get(f"{path}/members").json()["data"]
    assert admin.delete(f"{path}/members/{member['user_id']}").status_code == 200
    assert owner.get("/v1/me").status_code == 401
    assert admin.post("/v1/admin/tenants/none/invitations", json={}).status_code == 404


@pytest.mark.parametrize("email", ["ada", "@example.com", "ada@", "a b@example.com", "a@b, c@d", "<a@b>"])
def test_an_invitations_mistakes_name_their_field(new_member, email):
    owner = new_member(Role.OWNER)
    assert owner.post("/v1/invitations", json={"email": email}).json()["errors"][0]["field"] == "email"


def test_an_invitation_is_taken_back(new_member):
    owner = new_member(Role.OWNER)
    made = owner.post("/v1/invitations", json={"role": "viewer"}).json()
    assert made["url"]
    assert [(one["id"], one["url"]) for one in owner.get("/v1/invitations?limit=1").json()["data"]] == [(made["id"], None)]
    assert owner.delete(f"/v1/invitations/{made['id']}").json()["revoked_at"]


def test_an_answer_under_a_key_is_not_another_members(new_member):
    owner = new_member(Role.OWNER)
    other = new_member(Role.OWNER, of=owner)
    headers = {"Idempotency-Key": "guessed"}
    made = owner.post("/v1/keys", json={}, headers=headers).json()
    assert owner.post("/v1/keys", json={}, headers=headers).json() == made
    refused = other.post("/v1/keys", json={}, headers=headers)
    assert (refused.status_code, "secret" in refused.text) == (422, False)


@pytest.mark.parametrize(("path", "body"), [("/v1/keys", {"role": "owner"}), ("/v1/sign-in-links", None)])
def test_an_answer_that_gives_a_keys_rights_is_not_another_keys(new_member, client, path, body):
    owner, headers = new_member(Role.OWNER), {"Idempotency-Key": "guessed"}
    lesser = owner.post("/v1/keys", json={"role": "viewer"}).json()["secret"]
    made = owner.post(path, json=body, headers=headers).json()
    assert owner.post(path, json=body, headers=headers).json() == made
    refused = Caller(client, owner.tenant_id, lesser).post(path, json=body, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_key_reused")
    assert not {"secret", "url"} & refused.json().keys()


def test_every_process_hears_of_a_revocation_at_once(settings, server, new_member):
    """Two processes' caches: both learn of what one of them takes away without waiting for their entries to end."""
    owner = new_member(Role.OWNER)
    editor = new_member(Role.EDITOR, of=owner)
    with live(settings) as other:
        cache, heard = other.state.keys, threading.Event()
        other.state.change_listener.on_change(lambda notices: RIGHTS_CHANGED in notices and heard.set())
        cache._seconds = 3600.0  # the notice alone can end it
        url = other.url
        asked = {"headers": editor.headers, "timeout": PATIENCE}
        assert httpx.get(f"{url}/v1/me", **asked).status_code == 200
        assert cache.remembered(editor.key) is not None
        owner.delete(f"/v1/members/{me(editor)['user_id']}")
        until(heard.is_set)
        assert httpx.get(f"{url}/v1/me", **asked).status_code == 401
