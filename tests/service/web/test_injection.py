"""What people type is text on every page: names, labels, addresses, URLs. No markup is made of it, and the policy has nothing
to block. A new page is opened too, or the test asks for its id."""

import re

import pytest
from sqlalchemy import update

from service.files.models import File
from service.mirrors.models import TaskMirror, TrackingServer
from service.tenants.api_keys import Scope, mint_key
from service.tenants.member_roles import Role
from service.tenants.models import Tenant, User
from service.webhooks.models import Webhook
from tests.service.sample_tasks import adapter, jobs_of
from tests.service.web import sweeps
from tests.service.web.page_samples import FOLDER, GRID, drawn, run_on
from tests.service.web.test_isolation import page_routes

PAYLOAD = """"><img src=x onerror="window.hacked=1"></script><script>window.hacked=2</script>'{{7*7}}"""
SIGN = "window.hacked=1"  # by which the payload is found in a page's text
NO_PAGES = {  # what answers with no page, or with one that holds nothing of anybody's
    *("/", "/sign-in", "/sign-in/{secret}", "/oidc/sign-in", "/oidc/callback", "/docs", "/tasks/new"),
    *("/usage.csv", "/tasks/{task_id}/curves", "/tasks/{task_id}/curves.svg"),
}
TYPED = "document.body.textContent + [...document.querySelectorAll('input, textarea')].map(one => one.value)"
# whether the last letter of each of these, which are lines, stands at its right end
LEFT_TO_RIGHT = """all => all.map((one) => {
  const texts = document.createTreeWalker(one, NodeFilter.SHOW_TEXT), range = document.createRange(), lefts = [];
  for (let text = texts.nextNode(); text; text = texts.nextNode()) for (let at = 0; at < text.length; at++) {
    range.setStart(text, at);
    range.setEnd(text, at + 1);
    lefts.push(range.getBoundingClientRect().left);
  }
  return lefts.at(-1) === Math.max(...lefts); })"""
COUNT = "document.querySelectorAll('img[src=x], script:not([src])').length"


@pytest.fixture
def hostile(new_member, new_tenant, database, storage, node, client):
    """An owner, an admin of the same tenant, and the addresses of pages that show what both of them typed."""
    owner = new_member(Role.OWNER)
    new_member(Role.EDITOR, of=owner, subject=PAYLOAD)
    with database.begin() as session:
        _, admin_key = mint_key(session, owner.tenant_id, "admin", tuple(Scope))
        session.execute(update(Tenant).where(Tenant.id == owner.tenant_id).values(name=PAYLOAD))
        session.execute(update(User).where(User.email.startswith('">')).values(name=PAYLOAD))
    spec = {"name": PAYLOAD, "search_space": GRID, "labels": {PAYLOAD: PAYLOAD}}
    task, waiting = (owner.task(**spec)["id"] for _ in range(2))
    sweeps.begin(database, task)
    with database.begin() as session:
        session.execute(update(File).where(File.tenant_id == owner.tenant_id).values(name=PAYLOAD))
        jobs_of(session, task)[1].error = PAYLOAD
        made = adapter(session, storage, jobs_of(session, task)[0], FOLDER)
        hook = Webhook(id=f"webhook_{task[-8:]}", tenant_id=owner.tenant_id, url=f"https://x/{PAYLOAD}", events=[], secret=b"")
        session.add(hook)
        url = f"https://x/{PAYLOAD}"
        session.add(TrackingServer(id=f"tracker_{task[-8:]}", tenant_id=owner.tenant_id, name="lab", url=url))
        said = {"server": "lab", "experiment": PAYLOAD, "error": PAYLOAD, "tags": {}}
        session.add(TaskMirror(id=f"mirror_{task[-8:]}", tenant_id=owner.tenant_id, task_id=task, **said))
        adapter_id = made.id
    assert adapter_id
    run_on(database, node, task, [0])
    assert owner.post("/v1/keys", json={"name": PAYLOAD}).status_code == 201
    assert owner.post("/v1/service-accounts", json={"name": PAYLOAD}).status_code == 201
    assert owner.post("/v1/invitations", json={"email": "a@b.example"}).status_code == 201
    file = owner.get("/v1/files").json()["data"][0]["id"]
    ids = {"task_id": task, "file_id": file, "webhook_id": hook.id, "tenant_id": owner.tenant_id, "act": "cancel"}
    return owner, admin_key, ids, waiting


def paths_of(app, ids, waiting):
    """Each page's address, by its route."""
    queries = {"/compare": f"?task={ids['task_id']}&task={waiting}", "/tasks": f"?label={PAYLOAD}"}
    routes = {path for method, path in page_routes(app) if method == "GET"} - NO_PAGES
    found = {}
    for route in sorted(routes):
        missing = set(re.findall(r"{(\w+)", route)) - set(ids) - {"secret"}
        assert not missing, f"{route}: give this test an id for {missing}, or list it in NO_PAGES"
        if "{secret" not in route:
            found[route] = re.sub(r":\w+}", "}", route).format(**ids)
    like = {"/tasks/new?": f"/tasks/new?like={ids['task_id']}"}
    return found | {f"{route}?": route + query for route, query in queries.items()} | like


def test_what_people_type_is_text_on_every_page(app, visit, hostile):
    owner, admin_key, ids, waiting = hostile
    visitors = {"owner": visit(), "admin": visit()}
    visitors["owner"].sign_in(owner.key)
    visitors["admin"].sign_in(admin_key)
    unseen, broken = [], {}
    for route, path in paths_of(app, ids, waiting).items():
        visitor = visitors["admin" if route.startswith(("/admin", "/cluster")) else "owner"]
        page = visitor.open(path)
        if route in ("/tasks/{task_id}", "/compare?"):
            drawn(page)
            box = page.locator("#plot canvas").bounding_box()
            for part in (0.2, 0.5, 0.8):  # the curves' labels
                page.mouse.move(box["x"] + part * box["width"], box["y"] + part * box["height"])
        if SIGN not in page.evaluate(TYPED):
            unseen.append(route)
        found = page.evaluate("window.hacked"), page.evaluate(COUNT), list(visitor.complaints)
        if found != (None, 0, []):
            broken[route] = found
    assert not broken
    assert not unseen, "nothing of what was typed is there: is the page shown what it should be?"


def test_names_written_from_right_to_left_turn_no_words_beside_them_round(visitor, tenant, database):
    turned = "\u202eevil"  # a right-to-left override that nothing ends
    tasks = [tenant.task(name=f"{turned} {number}")["id"] for number in range(2)]
    for task in tasks:
        sweeps.begin(database, task)
    assert tenant.post("/v1/keys", json={"name": turned}).status_code == 201
    captions = visitor.open(f"/compare?task={tasks[0]}&task={tasks[1]}").locator("#captions > span:has(.swatch)")
    assert captions.evaluate_all(LEFT_TO_RIGHT) == [True, True]
    page = visitor.open("/keys")
    page.locator("summary").first.click()
    assert page.locator("summary + p + form button").first.evaluate_all(LEFT_TO_RIGHT) == [True]
    page = visitor.open(f"/tasks/{tasks[0]}/cancel")
    assert page.locator("h1").evaluate_all(LEFT_TO_RIGHT) == [True]
