"""The task list and a task's page in a real browser: live, by keyboard, without scripts, under attack, cut off."""

import re

from service.tasks.models import Task
from service.tasks.selection import Candidate, choose
from service.web.views.formats import NONE
from tests.browser import eventually
from tests.service.live_server import live
from tests.service.sample_tasks import adapter, jobs_of
from tests.service.web import sweeps
from tests.service.web.page_samples import FOLDER, GRID, HOSTILE, drawn, picture, redrawn


def test_the_list_filters_by_state_label_text_and_base(visitor, tenant, sweep):
    tenant.task(name="another", labels={"team": "growth"})
    page = visitor.open("/tasks")
    assert page.text_content("#total") == "2"
    for query, count in (
        ("?status=running", 1),
        ("?label=team%3Dgrowth", 1),
        ("?text=SWEEP", 1),
        ("?text=%25", 0),
        ("?base=small", 2),
        ("?base=large", 0),
        ("?archived=1", 0),
        (f"?text={sweep}", 1),
    ):
        with visitor.leaving():
            assert page.goto(visitor.url + "/tasks" + query).status == 200
        assert page.text_content("#total") == str(count), query
    assert "No task fits" in visitor.open("/tasks?text=nothing").content()
    visitor.open("/tasks")
    page.fill("#search", "sweep")
    with visitor.leaving(to="**/tasks?*text=sweep*"):
        page.keyboard.press("Enter")
    with visitor.leaving():
        page.go_back()
    assert page.text_content("#total") == "2"


def test_a_task_page_shows_its_jobs_and_moves_with_them(visitor, database, sweep):
    page = visitor.open(f"/tasks/{sweep}")
    drawn(page)
    rows = page.locator("#job-rows tr")
    assert rows.count() == 6
    assert "best" in (rows.first.get_attribute("class") or "")
    assert page.locator("#job-rows .r-diverging").count() == 1
    assert "1 stopped early" in page.text_content("#facts")
    assert page.locator(".worth tbody tr").count() == 2
    assert page.text_content("#trend-rows") == ""
    with database.begin() as session:
        task = session.get_one(Task, sweep)
        task.validation_rows, task.trend_rows = 16, 8
    before, parallel = picture(page), picture(page, "parallel")
    kept = page.locator("#job-rows tr").nth(5).element_handle()
    sweeps.go_on(database, sweep, 1, 41, 90)
    moved = page.locator("#job-rows tr", has_text="90/100")
    moved.wait_for()
    redrawn(page, before)
    redrawn(page, parallel, "parallel")
    assert kept.evaluate("row => row.isConnected")  # what did not change was not made anew
    page.wait_for_selector("#trend-rows >> text=Each validation point reads the first 8 of the 16 validation rows")
    sweeps.end(database, sweep)
    eventually(page, "document.getElementById('task-state').textContent.includes('succeeded')")
    page.wait_for_selector("#acts >> text=Delete…")


def test_pausing_resuming_and_cancelling(visitor, tenant, database, storage):
    task = tenant.task(name="one of many")["id"]
    with database.begin() as session:
        adapter(session, storage, jobs_of(session, task)[0], FOLDER)
    page = visitor.open(f"/tasks/{task}")
    visitor.follow("#acts >> text=Pause")
    page.wait_for_selector("#acts >> text=Resume")
    visitor.follow("#acts >> text=Resume")
    page.wait_for_selector("#acts >> text=Pause")
    visitor.follow("#acts >> text=Cancel…")
    assert "1 stored adapter." in page.text_content("main")
    visitor.follow("text=Cancel the task")
    page.wait_for_selector("#task-state >> text=cancelled")
    with page.expect_download() as download:
        page.click("#adapters a[download]")
    assert download.value.suggested_filename.endswith(".tar.gz")
    visitor.follow("#acts >> text=Delete…")
    visitor.follow("text=Delete the task")
    assert "1 task deleted." in page.text_content("main")
    assert tenant.get(f"/v1/tasks/{task}").status_code == 404


def test_the_winner_is_told_by_its_configuration_and_the_step_of_its_adapter(visitor, tenant, database, storage):
    task = tenant.task(name="a sweep", search_space=GRID)["id"]
    page = visitor.open(f"/tasks/{task}")
    assert "6 jobs wait" in page.text_content("#facts")
    assert "alive" not in page.text_content("#facts")
    assert NONE not in "".join(page.locator("#facts small").all_text_contents())
    sweeps.begin(database, task)
    with database.begin() as session:
        first, second = jobs_of(session, task)[:2]
        adapter(session, storage, first, FOLDER)
        adapter(session, storage, second, FOLDER, val_loss=2.0)
        row = session.get_one(Task, task)
        row.winner_job_id = first.id
        _, made = choose([Candidate(0, 4, 1.0, None)], None)
        row.selection = made.model_dump(mode="json") | {"suggestions": ["check the data: is it right?", "bring more rows"]}
    sweeps.end(database, task)
    page = visitor.open(f"/tasks/{task}")
    assert " ".join(page.text_content("#selection").split()) == (
        "Job 0 (lr 0.0001, rank 4, batch 4) won: the lowest validation loss, 1.0000. "
        "Its own loss was lowest after step 7 of 100, and rose afterwards. "
        "Next: check the data: is it right? Bring more rows."
    )
    rows = [" ".join(row.split()) for row in page.locator("#adapters tbody tr").all_text_contents()]
    assert [row.startswith("job 0 (winner)") for row in rows] == [True, False]
    assert "lr 0.0001, rank 4, batch 4" in rows[0]
    assert "Download" in page.text_content("#adapters a[download]")
    page.set_viewport_size({"width": 390, "height": 800})
    first = page.locator("#job-rows tr").first
    assert first.locator("td").first.inner_text() == "job 0"
    assert first.locator("[data-name='best loss']").bounding_box()["x"] < 390
    assert page.locator("#job-rows td[data-name=step]").first.is_visible()
    page.set_viewport_size({"width": 1280, "height": 800})
    lines = page.text_content("#spec").splitlines()
    assert [line.partition(":")[0] for line in lines if line[0].isalpha()][:5] == [
        *("name", "base_model", "dataset", "objective", "search_space"),
    ]
    assert "null" not in page.text_content("#spec")


def test_an_adapter_that_is_a_mean_says_of_which_steps(visitor, tenant, database, storage):
    task, mean = tenant.task(name="a sweep", search_space=GRID)["id"], "mean of steps 5, 7 and 9"
    sweeps.begin(database, task)
    with database.begin() as session:
        first = jobs_of(session, task)[0]
        kept = adapter(session, storage, first, FOLDER)
        kept.manifest = kept.manifest | {"averaged_steps": [5, 7, 9]}
        row = session.get_one(Task, task)
        row.winner_job_id, row.selection = first.id, choose([Candidate(0, 4, 1.0, None)], None)[1].model_dump(mode="json")
    sweeps.end(database, task)
    page = visitor.open(f"/tasks/{task}")
    assert f"1.0000. Its adapter is the {mean}. Its own loss was lowest after step 7 of 100, and rose afterwards." in " ".join(
        page.text_content("#selection").split()
    )
    assert page.locator("#job-rows [data-name='at step']").all_text_contents().count(mean) == 1
    assert page.locator("#adapters [data-name=step]").all_text_contents() == [mean]
    assert visitor.open("/adapters").locator("#rows [data-name=step]").all_text_contents() == [mean]


def test_several_are_cancelled_at_once(visitor, tenant):
    tasks = [tenant.task(name=f"task {number}")["id"] for number in range(3)]
    page = visitor.open("/tasks")
    for task in tasks[:2]:
        page.check(f"input[value={task}]")
    visitor.follow("text=Cancel the chosen…")
    assert "Cancel 2 tasks?" in page.text_content("h1")
    visitor.follow("text=Cancel them")
    assert "2 tasks cancelled." in page.text_content("main")
    assert [tenant.get(f"/v1/tasks/{task}").json()["status"] for task in tasks] == ["cancelled", "cancelled", "validating"]


def test_another_tenants_task_does_not_exist(visitor, new_tenant, database):
    other = new_tenant()
    task = other.task(name="a secret name")["id"]
    sweeps.begin(database, task)
    page = visitor.open("/tasks")
    csrf = page.get_attribute("meta[name=csrf]", "content")
    for path in ("", "/curves", "/curves.svg", "/cancel", "/delete"):
        answer = page.request.get(f"{visitor.url}/tasks/{task}{path}")
        assert answer.status == 404, path
        assert "secret" not in answer.text()
    form = {"headers": {"Origin": visitor.url}, "max_redirects": 0}
    for act in ("cancel", "pause", "resume", "archive", "delete"):
        answer = page.request.post(f"{visitor.url}/tasks/{task}/{act}", form={"csrf": csrf}, **form)
        assert answer.status == 404, act
    for act in ("bulk", "bulk/cancel", "bulk/archive"):
        answer = page.request.post(f"{visitor.url}/tasks/{act}", form={"csrf": csrf, "task": task, "act": "cancel"}, **form)
        assert answer.status == 404, act
    assert other.get(f"/v1/tasks/{task}").json()["status"] == "running"
    assert "secret" not in page.content()


def test_what_tenants_type_is_text(visitor, tenant, database):
    task = tenant.task(name=HOSTILE[:128], search_space=GRID, labels={HOSTILE[:100]: HOSTILE})["id"]
    sweeps.begin(database, task)
    with database.begin() as session:
        jobs_of(session, task)[1].error = HOSTILE
    for path in ("/tasks", f"/tasks/{task}", f"/tasks/{task}/cancel", "/tasks?" + "text=" + "%3Cscript%3E"):
        page = visitor.open(path)
        page.wait_for_load_state("networkidle") if "task_" not in path else drawn(page) if path.endswith(task) else None
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img[src=x]").count() == 0
        if "?" not in path:
            assert HOSTILE[:60] in page.text_content("main")
    page = visitor.open(f"/tasks/{task}")
    sweeps.go_on(database, task, 1, 41, 60)
    page.wait_for_selector("#job-rows tr:has-text('60/100')")
    assert page.evaluate("window.hacked") is None


def test_without_scripts_everything_can_be_read_and_done(visit, tenant, sweep):
    visitor = visit(java_script_enabled=False)
    page = visitor.sign_in(tenant.key)
    visitor.follow("text=a sweep")
    assert page.locator("#job-rows tr").count() == 6
    image = page.request.get(visitor.url + page.get_attribute("noscript img", "src"))
    assert image.status == 200
    assert image.text().count("<polyline") == 6
    visitor.follow("#jobs th a:has-text('rank')")
    assert "sort=rank" in page.url
    visitor.follow("#acts >> text=Cancel…")
    visitor.follow("text=Cancel the task")
    assert "cancelled" in page.text_content("#task-state")
    visitor.follow(".theme button")
    assert page.get_attribute("html", "data-theme") == "dark"


def test_an_ended_task_says_that_it_ended(visitor, tenant):
    task = tenant.task()["id"]
    tenant.post(f"/v1/tasks/{task}/cancel")
    page = visitor.open("/tasks")
    assert re.fullmatch(r"Ended (now|\d+ s ago)", page.text_content("#rows [data-name=ended]"))
    assert "for shortcuts" in page.text_content("footer")


def test_by_keyboard(visitor, tenant):
    for name in ("first", "second"):
        tenant.task(name=name)
    page = visitor.open("/tasks")
    page.keyboard.press("?")
    assert page.locator("#shortcuts").is_visible()
    page.keyboard.press("Escape")
    page.locator("#shortcuts").wait_for(state="hidden")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    assert page.locator("#rows tr").nth(1).locator("input").is_checked()
    page.keyboard.press("k")
    with visitor.leaving(to="**/tasks/task_*"):
        page.keyboard.press("Enter")
    assert "second" in page.text_content("h1")


def test_a_key_that_comes_before_the_closed_dialog_has_lost_the_focus_counts(visitor, tenant):
    """A closed dialog keeps the focus until the next frame is drawn: on a busy machine a key comes before that."""
    tenant.task()
    page = visitor.open("/tasks")
    focused = page.evaluate(
        """() => {
            const dialog = document.getElementById("shortcuts");
            dialog.showModal();
            dialog.close();
            document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "/", bubbles: true }));
            return document.activeElement.id;
        }"""
    )
    assert focused == "search"


def test_a_page_goes_on_after_an_answer_that_broke_off(visitor, tenant):
    tenant.task(name="first")
    page = visitor.open("/tasks")
    page.evaluate(
        """() => {
            const { text } = Response.prototype;
            Response.prototype.text = () => {
                Response.prototype.text = text;
                return Promise.reject(new TypeError("network error"));
            };
        }"""
    )
    page.wait_for_selector("#connection:has-text('does not answer')")
    tenant.task(name="second")
    page.wait_for_selector("#rows >> text=second")
    assert page.locator("#connection").is_hidden()


def test_a_dead_service_is_told_of_and_comes_back(visit, settings, tenant, sweep, database):
    with live(settings) as first:
        url, port = first.url, int(first.url.rpartition(":")[2])
        visitor = visit(url)
        visitor.sign_in(tenant.key)
        page = visitor.open(f"/tasks/{sweep}")
        drawn(page)
    page.wait_for_selector("#connection:not([hidden])")
    assert "does not answer" in page.text_content("#connection")
    with live(settings, port):
        eventually(page, "document.getElementById('connection').hidden")
        sweeps.go_on(database, sweep, 1, 41, 70)
        page.wait_for_selector("#job-rows tr:has-text('70/100')")
        page.close()
    visitor.complaints[:] = [one for one in visitor.complaints if "ERR_" not in one]  # said or not, as timing has it
