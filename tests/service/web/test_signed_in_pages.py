"""Signing in and out in a real browser, and pages whose session ends."""

from datetime import UTC, datetime

from sqlalchemy import delete, update

from service.tenants.api_keys import hash_of
from service.tenants.models import ApiKey, BrowserSession


def test_signing_in_and_out(visit, tenant):
    visitor = visit()
    page = visitor.open("/tasks?status=running")
    assert "/sign-in?next=" in page.url
    page.fill("#key", "mk_wrong")
    with visitor.leaving():
        page.keyboard.press("Enter")
    assert "not known here" in page.text_content("[role=alert]")
    visitor.expected("401")
    page.fill("#key", tenant.key)
    with visitor.leaving(to="**/tasks?status=running"):
        page.keyboard.press("Enter")
    visitor.open("/tasks")
    assert "Make the first task" in page.text_content(".empty")
    visitor.follow("text=Sign out", to="**/sign-in")
    assert "/sign-in" in visitor.open("/tasks").url


def test_a_page_left_by_a_bare_click_is_a_complaint(visitor):
    """Reads after such a click race against the next page, which is rarely seen where pages come fast."""
    visitor.page.click("header >> text=Files")
    visitor.page.wait_for_url("**/files")
    visitor.expected("/files outside of leaving()")


def test_a_one_time_link_signs_in(visit, server, tenant, http):
    made = http.post("/v1/sign-in-links").json()["url"]
    visitor = visit()
    with visitor.leaving(to="**/tasks"):
        visitor.page.goto(made)
    again = visit()
    with again.leaving():
        again.page.goto(made)
    assert "used already" in again.page.text_content("[role=alert]")
    again.expected("401")


def test_what_is_typed_outlives_the_session(visitor, tenant, database, server):
    page = visitor.open("/tasks/new")
    page.fill("[name=name]", "kept")
    page.uncheck("[name=schedule][value=constant]")
    page.wait_for_selector("[id='e-dataset.file_id']:has-text('choose a file, or upload one')")
    with database.begin() as session:
        session.execute(delete(BrowserSession).where(BrowserSession.tenant_id == tenant.tenant_id))
    server.state.keys.forget()
    page.fill("[name=labels]", "a=b")
    page.wait_for_selector("#connection:has-text('what is typed here is kept')")
    visitor.follow("aside button.primary")
    page.fill("#key", tenant.key)
    visitor.follow("main button.primary", to="**/tasks/new")
    assert (page.input_value("[name=name]"), page.input_value("[name=labels]")) == ("kept", "a=b")
    assert not page.is_checked("[name=schedule][value=constant]")
    visitor.open("/tasks")
    assert visitor.open("/tasks/new").input_value("[name=name]") == "", "another page forgets the draft"


def test_a_revoked_keys_page_says_so(visitor, tenant, database, server):
    page = visitor.open("/tasks")
    with database.begin() as session:
        session.execute(update(ApiKey).where(ApiKey.hash == hash_of(tenant.key)).values(revoked_at=datetime.now(UTC)))
    server.state.keys.forget()
    page.wait_for_selector("#connection:has-text('session has ended')")
    visitor.follow("#connection a")
    assert "was revoked" in page.text_content("main")


def test_a_form_of_an_earlier_session_leads_back_to_its_page_and_keeps_what_was_typed(visitor, tenant):
    page = visitor.open("/tasks/new")
    page.wait_for_selector("#upload-file")
    other = visitor.context.new_page()
    other.goto(f"{visitor.url}/tasks")
    other.click("text=Sign out")
    other.fill("#key", tenant.key)
    other.click("main button.primary")
    other.wait_for_url("**/tasks")
    page.fill("[name=name]", "kept")
    page.wait_for_selector("#connection:has-text('an earlier session')")
    visitor.follow("aside button.primary")
    assert "an earlier session" in page.text_content("[role=alert]")
    visitor.follow("text=Back to the form", to="**/tasks/new")
    assert page.input_value("[name=name]") == "kept"
    page.fill("[name=labels]", "no label")
    page.wait_for_selector("[id='e-labels']:has-text('key=value')")
    visitor.expected("403")


def test_text_is_copied_where_the_browser_gives_no_clipboard(visitor, tenant):
    """By plain http it gives none, but for this machine's own addresses."""
    visitor.page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page = visitor.open(f"/tasks/{tenant.task()['id']}")
    page.evaluate("document.addEventListener('copy', () => { window.copied = getSelection().toString(); })")
    page.click("#spec-title ~ details summary")
    page.click("[data-copy=spec]")
    page.wait_for_selector("[data-copy=spec]:has-text('Copied')")
    assert "search_space:" in page.evaluate("window.copied")
