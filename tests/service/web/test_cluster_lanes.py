"""Names of nodes stand in full on the cluster's timeline, and run into no bar."""

import pytest

from service.fleet.models import Node
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
