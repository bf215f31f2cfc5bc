"""The plots of a task page in a real browser: hover, brushes, keyboard."""

import re
from itertools import pairwise

from service.tasks.models import Task
from tests.browser import eventually
from tests.service.sample_tasks import chunk, jobs_of
from tests.service.web import sweeps
from tests.service.web.page_samples import GRID, drawn, picture, redrawn

OPAQUE = """(() => { const canvas = document.querySelector("#plot canvas"), found = new Set();
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (let at = 0; at < data.length; at += 4) if (data[at + 3] === 255) found.add(`rgb(${data.slice(at, at + 3).join(", ")})`);
  return [...found]; })()"""  # the colours of the plot's opaque pixels
SAID = """const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (words, ...where) {
  document.documentElement.dataset.said = words; write.call(this, words, ...where); };"""  # what was last written on a canvas

HEIGHTS = """const put = CanvasRenderingContext2D.prototype.fillText; let heights = [];
CanvasRenderingContext2D.prototype.fillText = function (words, x, y, ...more) {
  if (words === "step") { window.heights = heights; heights = []; }
  else if (this.textAlign === "right" && (!this.canvas.isConnected || this.canvas.closest("#plot"))) heights.push(y);
  put.call(this, words, x, y, ...more); };"""  # where the values beside the loss axis stand, in CSS pixels


def test_hovering_links_plot_and_table(visitor, sweep):
    page = visitor.open(f"/tasks/{sweep}")
    drawn(page)
    before = picture(page)
    page.locator("#job-rows tr").nth(2).hover()
    redrawn(page, before)
    page.locator("#plot canvas").scroll_into_view_if_needed()
    box = page.locator("#plot canvas").bounding_box()
    for height in range(40, 340, 6):
        page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + height)
        if page.locator("#plot .tip").is_visible():
            break
    assert re.search(r"job \d: lr .* step \d+ · (validation|training) \d", page.text_content("#plot .tip"))
    assert page.locator("#job-rows tr.lit").count() == 1


def test_new_points_wait_for_curves_that_are_still_being_read(visitor, database, sweep):
    page, held, new = visitor.page, [], []

    def hold(route):
        answer = route.fetch()
        sweeps.go_on(database, sweep, 1, 41, 90)
        held.append((route, answer))

    page.route("**/curves", hold, times=1)
    page.on("request", lambda asked: new.append(asked) if "/curves?" in asked.url else None)
    visitor.open(f"/tasks/{sweep}")
    page.wait_for_selector("#job-rows tr:has-text('90/100')")
    page.evaluate("() => fetch(location.href).then(() => 0)")  # what was asked before is known now
    assert new == []
    ((route, answer),) = held
    with page.expect_response("**/curves?*"):
        route.fulfill(response=answer)
    another = visitor.context.new_page()
    another.goto(page.url)
    drawn(another)
    eventually(page, "whole => document.querySelector('#plot canvas').toDataURL() === whole", picture(another))


def test_brushing_an_axis_filters_the_plot_and_the_table(visitor, sweep):
    page = visitor.open(f"/tasks/{sweep}")
    drawn(page)
    page.locator("#parallel").scroll_into_view_if_needed()
    box, before = page.locator("#parallel canvas").bounding_box(), picture(page)
    x = box["x"] + 60  # the first axis
    page.mouse.move(x, box["y"] + 24)
    page.mouse.down()
    page.mouse.move(x, box["y"] + 70, steps=4)
    page.mouse.up()
    out = page.locator("#job-rows tr.out")
    assert 0 < out.count() < 6
    redrawn(page, before)
    page.mouse.click(x, box["y"] + 150)
    assert out.count() == 0


def test_the_plots_are_worked_by_keyboard(visitor, sweep):
    page = visitor.open(f"/tasks/{sweep}")
    drawn(page)
    page.focus("#parallel canvas")
    for key in ("ArrowRight", "ArrowLeft", "ArrowDown"):
        page.keyboard.press(key)
    out = page.locator("#job-rows tr.out")
    assert 0 < out.count() < 6
    page.keyboard.press("Shift+ArrowDown")
    assert out.count() == 0
    page.keyboard.press("ArrowUp")
    assert 0 < out.count() < 6
    page.keyboard.press("Escape")
    assert out.count() == 0
    page.focus("#plot canvas")
    assert page.locator("#zoom-out").is_disabled()
    before = picture(page)
    for key in ("+", "ArrowRight"):
        page.keyboard.press(key)
        redrawn(page, before)
        before = picture(page)
    assert page.locator("#zoom-out").is_enabled()
    page.keyboard.press("Escape")
    assert page.locator("#zoom-out").is_disabled()


def test_eight_tasks_beside_each_other_are_told_apart_by_colour_and_caption(visitor, tenant, database):
    tasks = [tenant.task(name=f"{number}_{'long' * 30}"[:128], search_space=GRID)["id"] for number in range(8)]
    for task in tasks:
        sweeps.begin(database, task, steps=20)
    page = visitor.open("/compare?" + "&".join(f"task={task}" for task in tasks))
    drawn(page)
    captions = page.locator("#captions > span:has(.swatch)")
    assert [caption.split("_")[0] for caption in captions.all_text_contents()] == list("01234567")
    colours = captions.locator(".swatch").evaluate_all("all => all.map((one) => getComputedStyle(one).backgroundColor)")
    assert len(set(colours)) == 8
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width + 1


def test_what_a_pointer_zooms_a_pointer_undoes(visitor, tenant, database):
    task = tenant.task(search_space=GRID)["id"]
    sweeps.begin(database, task)
    page = visitor.open(f"/compare?task={task}")
    drawn(page)
    colour = page.locator("#captions .swatch").evaluate("(one) => getComputedStyle(one).backgroundColor")
    assert colour in page.evaluate(OPAQUE), "the curve is as strong as its caption"
    whole = picture(page)
    page.locator("#plot canvas").scroll_into_view_if_needed()
    box = page.locator("#plot canvas").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 100)
    page.mouse.up()
    page.click("#zoom-out")
    page.mouse.move(0, 0)
    eventually(page, "whole => document.querySelector('#plot canvas').toDataURL() === whole", whole)
    assert page.locator("#zoom-out").is_disabled()


def test_a_task_that_failed_says_what_became_of_its_jobs_and_awaits_no_losses(visitor, tenant, database):
    task = tenant.task()["id"]
    with database.begin() as session:
        session.get_one(Task, task).status = "failed"
        for job, status in zip(jobs_of(session, task), ("failed", "cancelled"), strict=True):
            job.status = status
    visitor.page.add_init_script(SAID)
    page = visitor.open(f"/tasks/{task}")
    page.wait_for_selector("html[data-said='No losses came before the end']")
    assert "1 failed, 1 cancelled" in page.text_content("#facts")


def test_points_whose_answer_was_refused_are_asked_for_again(visitor, database, sweep):
    page = visitor.open(f"/tasks/{sweep}")
    drawn(page)
    page.route("**/curves?*", lambda route: route.fulfill(status=503), times=1)
    with page.expect_response("**/curves?*"):
        sweeps.go_on(database, sweep, 1, 41, 70)
    page.wait_for_selector("#job-rows tr:has-text('70/100')")
    sweeps.go_on(database, sweep, 1, 71, 90)
    page.wait_for_selector("#job-rows tr:has-text('90/100')")
    another = visitor.context.new_page()
    another.goto(page.url)
    drawn(another)
    eventually(page, "whole => document.querySelector('#plot canvas').toDataURL() === whole", picture(another))
    visitor.expected("503")


def test_a_task_that_ends_without_losses_while_it_is_looked_at_awaits_none(visitor, tenant):
    task = tenant.task()["id"]
    visitor.page.add_init_script(SAID)
    page = visitor.open(f"/tasks/{task}")
    page.wait_for_selector("html[data-said='No losses yet; they appear here as they come']")
    tenant.post(f"/v1/tasks/{task}/cancel")
    page.wait_for_selector("html[data-said='No losses came before the end']")
    assert "the base was not evaluated" in page.text_content("#facts")


def test_losses_over_many_decades_have_values_that_do_not_cover_each_other(visitor, tenant, database):
    task = tenant.task(search_space=GRID)["id"]
    sweeps.begin(database, task)
    with database.begin() as session:
        chunk(session, jobs_of(session, task)[1], "train_loss", list(range(41, 55)), [10.0**-power for power in range(14)])
    visitor.page.add_init_script(HEIGHTS)
    page = visitor.open(f"/tasks/{task}")
    drawn(page)
    heights = sorted(page.evaluate("window.heights"))
    assert len(heights) >= 4
    assert min(after - before for before, after in pairwise(heights)) >= 12


def test_the_mark_of_a_job_that_stopped_at_the_last_step_is_whole(visitor, sweep):
    page = visitor.open(f"/tasks/{sweep}")
    drawn(page)
    # in CSS pixels: the rightmost of the mark's colour, and the right edge of the axes
    rightmost, edge = page.evaluate(
        """() => { const canvas = document.querySelector("#plot canvas"), ratio = devicePixelRatio;
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const shows = (at) => data[at] > 180 && data[at + 1] > 60 && data[at + 1] < 120 && data[at + 2] < 40 && data[at + 3];
        let most = -1;
        for (let at = 0; at < data.length; at += 4) if (shows(at)) most = Math.max(most, (at / 4) % canvas.width);
        return [most / ratio, canvas.width / ratio - 14]; }"""
    )
    assert edge + 2 < rightmost < edge + 8
