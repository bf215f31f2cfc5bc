"""Invitations in a browser: whom they admit, how often, until when, and with which role."""

from sqlalchemy import func, update

from service.tenants.member_roles import Role
from service.tenants.models import Invitation
from service.web.session.provider_sign_in import COOKIE
from tests.service.members.conftest import PUBLIC, Browser
from tests.service.members.sign_ins import refused, users


def test_an_invitation_with_an_address_admits_that_address_alone(browser, provider, tenant, link, database):
    for subject, email, verified in (("m1", "mallory@example.com", True), ("m2", "ada@example.com", False)):
        made = link(tenant.tenant_id, Role.VIEWER, "ada@example.com")
        provider.sign_in_as(subject, email, verified)
        refused(browser, browser.join(made), "This invitation is for ada@example.com")
        assert users(database, subject=subject) == []
        provider.sign_in_as("a" + subject, "Ada@Example.com")
        assert browser.join(made).status_code == 200  # the refusal used nothing up
        assert browser.me()["role"] == "viewer"
        browser.cookies.clear()


def test_an_invitation_works_once_until_it_ends_or_is_taken_back(browser, provider, tenant, link, database, service):
    provider.sign_in_as("uses")
    made = link(tenant.tenant_id, Role.EDITOR)
    path = made.removeprefix(PUBLIC)
    evil = browser.post(path, origin="https://evil.example")
    assert (evil.status_code, COOKIE in browser.cookies) == (403, False)  # no other site moves anybody into a tenant
    browser.join(made)
    assert browser.get(path).status_code == 404
    provider.sign_in_as("late")
    late = Browser(service.app)
    assert late.post(path).status_code == 404
    for change in ({"expires_at": func.now()}, {"revoked_at": func.now()}):
        made = link(tenant.tenant_id)
        with database.begin() as session:
            session.execute(update(Invitation).where(Invitation.accepted_at.is_(None)).values(**change))
        assert late.post(made.removeprefix(PUBLIC)).status_code == 404
    assert late.get("/invitations/mi_nobody").status_code == 404


def test_an_invitation_that_ends_during_the_sign_in_admits_nobody(browser, provider, tenant, link, database):
    provider.sign_in_as("slow")
    path = link(tenant.tenant_id).removeprefix(PUBLIC)
    page = browser.post(path).text
    with database.begin() as session:
        session.execute(update(Invitation).where(Invitation.tenant_id == tenant.tenant_id).values(revoked_at=func.now()))
    address = next(part for part in page.split('"') if "/authorize?" in part).removeprefix("0;url=").replace("&amp;", "&")
    refused(browser, browser.get(browser.at_provider(address), cross_site=True), "taken back", 404)


def test_an_invitation_raises_a_role_and_never_lowers_it(browser, provider, tenant, link):
    provider.sign_in_as("rise")
    for role, then in ((Role.VIEWER, "viewer"), (Role.OWNER, "owner"), (Role.EDITOR, "owner")):
        browser.join(link(tenant.tenant_id, role))
        assert browser.me()["role"] == then
