"""Names of nodes stand in full on the cluster's timeline, and run into no bar. What starts much later shrinks no other bar."""

from datetime import UTC, datetime, timedelta

import pytest

from service.fleet.models import Node, Placement
from service.scheduler.explain.schedule_view import Waiting
from service.web.views.timeline.cluster_lanes import timeline
from tests.browser import eventually
from tests.service.web.page_samples import run_on

# boxes of what is drawn, in the drawing's own coordinates
BOXES = "all => all.map((one) => one.getBBox()).map((box) => [box.x, box.y, box.x + box.width, box.y + box.height])"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpu-a", ["gpu-a · 0", "gpu-a · 1"]),
        ("ip-10-0-12-34.eu-central-1", ["ip-10-0-12-34.eu-central-1", "GPU 0", "GPU 1"]),
        ("W" * 14, ["W" * 14, "GPU 0", "GPU 1"]),
        ("W" * 63, ["W" * 63, "GPU 0", "GPU 1"]),
    ],
)
def test_a_nodes_name_is_neither_cut_nor_runs_into_bars(nothing_left, visitor, tenant, database, node, name, words):
    with database.begin() as session:
        session.get_one(Node, node.id).name = name
    run_on(database, node, tenant.task()["id"], [0, 1])
    page = visitor.open("/cluster")
    lanes = page.locator("#lanes text:not([text-anchor])")
    assert lanes.all_text_contents() == words
    names, bars = lanes.evaluate_all(BOXES), page.locator("#lanes rect").evaluate_all(BOXES)
    assert len(bars) == 2
    for left, top, right, bottom in names:
        assert right <= 1000, "it ends within the drawing"
        for begin, above, end, below in bars:
            assert right <= begin or end <= left or bottom <= above + 1 or below <= top + 1, "a name runs into a bar"


def test_a_task_of_a_later_day_or_month_leaves_others_their_scale(nothing_left, tenant, database, node):
    now = datetime.now(UTC)

    def waits(days: int) -> Waiting:
        start = now + timedelta(days=days)
        told = {"gpus": 1, "node": node.name, "expected_start": start, "expected_end": start + timedelta(minutes=1)}
        return Waiting.model_validate(dict.fromkeys(Waiting.model_fields) | told)

    run_on(database, node, tenant.task()["id"], [0])
    with database.begin() as session:
        plain, soon, late = (timeline(session, tenant.tenant_id, asked, now) for asked in ([], [waits(2)], [waits(62)]))
    assert (late.now, late.breaks) == (plain.now, [])
    assert (len(late.blocks), len(soon.blocks)) == (1, 2)
    assert [lane.words for lane in late.lanes] == [lane.words for lane in plain.lanes]
    (running,), (torn,), (begun, planned) = plain.blocks, soon.breaks, soon.blocks
    assert begun.width > 0.8 * running.width
    assert begun.x + begun.width < torn.x < planned.x


def test_of_many_nodes_those_with_bars_come_first_and_their_names_stay_in_sight(nothing_left, visit, tenant, database, node):
    devices = [{"index": 0, "type": "H100", "memory_bytes": 80 * 2**30}]
    with database.begin() as session:
        session.get_one(Node, node.id).name = "the-last"
        for at in range(40):
            session.add(
                Node(name=f"gpu-{at:02}", id=f"node_{at}", boot_id="b", status="ready", devices=devices, credential_hash=b"")
            )
    run_on(database, node, tenant.task()["id"], [0, 1])
    visitor = visit(viewport={"width": 390, "height": 844})
    visitor.sign_in(tenant.key)
    page = visitor.open("/cluster")
    lanes = page.locator("#lanes")
    names = lanes.locator(".names text")
    assert names.all_text_contents()[:3] == ["the-last · 0", "the-last · 1", "gpu-00"]
    assert page.locator("#queued").bounding_box()["y"] < 844, "the queue begins on the first screen"
    left = lanes.bounding_box()["x"]
    for end in ("0", "lanes.scrollWidth"):
        lanes.evaluate(f"lanes => lanes.scrollLeft = {end}")
        eventually(page, f"Math.abs(document.querySelector('#lanes .names text').getBoundingClientRect().x - {left}) < 12")
    lanes.evaluate("lanes => lanes.scrollTop = lanes.scrollHeight")
    times, box = lanes.locator(".times").bounding_box(), lanes.bounding_box()
    assert abs(times["y"] - box["y"]) < 3, "the times stay above the lanes"


def test_a_break_stands_in_the_drawing_and_says_how_much_it_leaves_out(nothing_left, visitor, tenant, database, node):
    task = tenant.task()["id"]
    run_on(database, node, task, [0])
    with database.begin() as session:
        session.get_one(Placement, f"placement_{task[-10:]}").expected_end = datetime.now(UTC) + timedelta(days=3, hours=1)
    page = visitor.open("/cluster")
    torn = page.locator("#lanes .torn")
    assert torn.count() == 1
    torn.hover()
    eventually(page, "document.getElementById('told').textContent.endsWith('in which nothing starts or ends')")
    assert "torn: for a while nothing starts or ends" in page.locator("#legend").text_content()
    (tear,), (bar,) = torn.evaluate_all(BOXES), page.locator("#lanes rect").evaluate_all(BOXES)
    assert bar[0] < tear[0] < tear[2] < bar[2] <= 1000, "the bar goes on behind the tear"
