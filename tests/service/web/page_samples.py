"""What several tests of pages show and type."""

from datetime import UTC, datetime, timedelta

from service.fleet.models import Placement
from service.tasks.models import Task
from tests.browser import eventually

HOSTILE = """<script>window.hacked=1</script><img src=x onerror="window.hacked=2">'"{{7*7}}</textarea>"""
FOLDER = {"adapter_model.safetensors": b"x" * 10, "adapter_config.json": b"{}"}
GRID = {"learning_rate": [1e-4, 3e-4, 1e-3], "rank": [4, 8], "batch_size": [4]}


def picture(page, id="plot"):
    return page.evaluate(f"document.querySelector('#{id} canvas').toDataURL()")


def redrawn(page, before, id="plot"):
    """Wait for another picture than `before`: canvases are drawn with the next frame."""
    eventually(page, f"before => document.querySelector('#{id} canvas').toDataURL() !== before", before)


def focused(page, name):
    """Wait until the field of this name has the focus: `autofocus` is heeded when the first frame is drawn."""
    eventually(page, "name => document.activeElement.name === name", name)


def drawn(page):
    page.wait_for_selector("html[data-drawn]")
    eventually(page, "document.querySelector('#plot canvas').width > 300")


def run_on(database, node, task, devices):
    now = datetime.now(UTC)
    with database.begin() as session:
        session.get_one(Task, task).status = "running"
        session.add(
            Placement(
                id=f"placement_{task[-10:]}",
                task_id=task,
                node_id=node.id,
                device_indexes=devices,
                fence=1,
                created_at=now - timedelta(minutes=30),
                lease_until=now + timedelta(hours=1),
                expected_end=now + timedelta(minutes=40),
            )
        )
