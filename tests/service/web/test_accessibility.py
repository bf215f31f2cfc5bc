"""axe (axe-core, from its wheel) finds nothing serious on any page, light and dark; nothing overflows a phone."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from service.fleet.models import Node
from service.tenants.api_keys import Scope
from service.tenants.member_roles import Role
from service.webhooks.models import Webhook
from tests.service.sample_tasks import adapter, jobs_of
from tests.service.web import sweeps
from tests.service.web.page_samples import FOLDER, GRID, drawn, run_on

try:
    import axe_playwright_python
except ImportError:  # then there is no browser either, and these tests say that they were not run
    axe_playwright_python = None  # type: ignore[assignment]

# what a phone's screen would cut: the navigation, and cells of tables that become cards
CUT = (
    "[...document.querySelectorAll('header nav, .cards, .cards td')]"
    ".filter(one => one.scrollWidth > one.clientWidth + 1 || one.getBoundingClientRect().right > innerWidth + 1)"
    ".map(one => one.outerHTML.slice(0, 120))"
)
BAD = ("serious", "critical")


@pytest.fixture
def lived_in(visit, new_tenant, database, storage, node):
    """An admin's browser, and the pages of a tenant that has one of everything."""
    caller = new_tenant(*Scope)
    task = caller.task(name="a sweep", search_space=GRID, labels={"team": "research"})["id"]
    sweeps.begin(database, task)
    waiting = caller.task(name="one that waits")["id"]
    assert caller.post("/v1/tracking-servers", json={"name": "lab", "url": "https://1.1.1.1"}).status_code == 201
    with database.begin() as session:
        made = adapter(session, storage, jobs_of(session, task)[0], FOLDER)
        session.add(Webhook(id=f"webhook_{task[-8:]}", tenant_id=caller.tenant_id, url="https://x", events=[], secret=b""))
    run_on(database, node, task, [0])
    assert caller.post("/v1/merged-models", json={"adapter_id": made.id}).status_code == 201
    visitor = visit()
    visitor.sign_in(caller.key)
    pages = [
        *(
            "/tasks",
            f"/tasks/{task}",
            f"/tasks/{task}/cancel",
            "/tasks/new",
            f"/compare?task={task}&task={waiting}",
            "/cluster",
        ),
        *(
            "/files",
            f"/files/{caller.get('/v1/files').json()['data'][0]['id']}",
            "/adapters",
            "/adapters/merged",
            "/usage",
            "/keys",
            "/webhooks",
            f"/webhooks/webhook_{task[-8:]}",
            "/tracking-servers",
            "/admin",
            f"/admin/tenants/{caller.tenant_id}",
            "/docs",
        ),
    ]
    return visitor, pages


@pytest.fixture
def peopled(visit, new_member):
    """An owner's browser, and the pages of people: members with an invitation and a service account, one's account, joining."""
    owner = new_member(Role.OWNER)
    new_member(Role.VIEWER, of=owner, subject="a-member-whose-address-is-rather-long-for-a-phone")
    made = owner.post("/v1/invitations", json={"email": "somebody.with.a.long.address@example.com", "role": "editor"})
    assert owner.post("/v1/service-accounts", json={"name": "nightly evaluation"}).status_code == 201
    visitor = visit()
    visitor.sign_in(owner.key)
    return visitor, ["/members", "/account", urlsplit(made.json()["url"]).path]


def violations(visitor) -> list[str]:
    """axe's serious findings on the visitor's page. Its script comes by the debugger, past the page's policy, and what the
    policy then says of that script counts for nothing."""
    page = visitor.page
    assert visitor.complaints == []
    source = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    page.evaluate(source + "\n0")
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']}).then(found => found.violations)")
    visitor.complaints[:] = [one for one in visitor.complaints if "Content Security Policy" not in one]
    return [f"{one['id']}: {part['html'][:150]}" for one in found if one["impact"] in BAD for part in one["nodes"][:3]]


@pytest.mark.parametrize(
    ("colours", "width"), [pytest.param("light", 1280, marks=pytest.mark.slow), ("dark", 1280), ("light", 390)]
)
def test_axe_finds_nothing_serious(lived_in, colours, width):
    visitor, pages = lived_in
    visitor.page.emulate_media(color_scheme=colours)
    visitor.page.set_viewport_size({"width": width, "height": 860})
    found = {}
    for path in [*pages, "/nowhere"]:
        page = visitor.open(path)
        if path == "/nowhere":
            visitor.expected("404")
        if path.startswith("/tasks/task_") and not path.endswith("cancel"):
            drawn(page)
        if bad := violations(visitor):
            found[path] = bad
    assert not found


@pytest.mark.parametrize(("colours", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_the_pages_of_people_keep_to_the_same(peopled, colours, width):
    visitor, pages = peopled
    visitor.page.emulate_media(color_scheme=colours)
    visitor.page.set_viewport_size({"width": width, "height": 860})
    found = {}
    for path in pages:
        page = visitor.open(path)
        for fold in page.locator("main details > summary").all():
            fold.click()
        wide = page.evaluate("document.documentElement.scrollWidth") > width + 1
        if bad := [*violations(visitor), *page.evaluate(CUT), *(["it is wider than the screen"] if wide else [])]:
            found[path] = bad
    assert not found


def test_axe_finds_what_is_wrong(lived_in):
    visitor, _ = lived_in
    page = visitor.open("/keys")
    page.evaluate("document.querySelector('form [name=name]').closest('label').replaceWith(document.createElement('input'))")
    assert any(one.startswith("label") for one in violations(visitor))


def test_nothing_overflows_a_phone_a_tablet_or_a_screen(lived_in):
    visitor, pages = lived_in
    wide = {}
    for path in pages:
        visitor.page.set_viewport_size({"width": 390, "height": 800})
        page = visitor.open(path)
        if path.startswith(("/tasks/task_", "/compare")) and not path.endswith("cancel"):
            drawn(page)
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 391:
            wide[path] = width
        if cut := page.evaluate(CUT):
            wide[path] = cut
        for screen in (800, 1024, 1280):
            page.set_viewport_size({"width": screen, "height": 800})
            if (width := page.evaluate("document.documentElement.scrollWidth")) > screen + 1:
                wide[f"{path} at {screen}"] = width
    assert not wide


def test_the_longest_name_of_a_node_cuts_no_fact_of_its_task(visitor, sweep, database, node):
    with database.begin() as session:
        session.get_one(Node, node.id).name = "n" * 63
    run_on(database, node, sweep, [0])
    visitor.page.set_viewport_size({"width": 360, "height": 800})
    page = visitor.open(f"/tasks/{sweep}")
    assert "n" * 63 in page.text_content("#facts")
    assert page.evaluate("[...document.querySelectorAll('#facts > *')].every(one => one.getBoundingClientRect().right <= 360)")


def test_many_jobs_leave_the_rest_of_a_phones_page_within_reach(visitor, tenant):
    space = {"learning_rate": [1e-5 * rate for rate in range(1, 18)], "rank": [4, 8], "batch_size": [4]}
    task = tenant.task(search_space=space)["id"]
    visitor.page.set_viewport_size({"width": 360, "height": 800})
    page = visitor.open(f"/tasks/{task}")
    assert page.locator("#job-rows > tr").count() == 34
    assert page.evaluate("document.querySelector('.scroll:has(#jobs)').offsetHeight") <= 800


def test_everything_pressable_can_be_reached_and_seen_by_keyboard(lived_in):
    visitor, _ = lived_in
    page = visitor.open("/tasks")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    seen = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "() => { const one = document.activeElement, style = getComputedStyle(one);"
            " return [one.outerHTML.slice(0, 90), style.outlineStyle !== 'none' || one.matches('body, select, input')]; }"
        )
        seen.add(focused[0])
        assert focused[1], f"the focus cannot be seen on {focused[0]}"
    assert any("New task" in one or "/tasks/new" in one for one in seen)
    assert any('name="act"' in one for one in seen)
