"""The dashboard's walk: from a file on one's own disk to an adapter that PEFT loads, by clicks alone, on a real worker."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Visitor, eventually, launched, visiting
from tests.walk.running_stack import RunningStack, gsm8k, running_stack, unpacked
from tests.walk.test_walk import peft_losses

PICTURE = "document.querySelector('#plot canvas').toDataURL()"


@pytest.fixture(scope="module")
def visitor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningStack, Visitor]]:
    with (
        launched(request) as browser,
        running_stack(tmp_path_factory.mktemp("motet")) as motet,
        visiting(browser, motet.url) as visit,
    ):
        signed_in = visit(accept_downloads=True)
        signed_in.sign_in(motet.demo)
        yield motet, signed_in


def submitted(visitor: Visitor, rows: Path, name: str, **fields: str) -> str:
    """The id of a task made with the form, whose file is uploaded there."""
    page = visitor.open("/tasks/new")
    page.set_input_files("#upload-file", rows)
    page.wait_for_selector("#upload [role=status]:has-text('rows')")
    for path, value in ({"name": name} | fields).items():
        field = f"[name='{path}']"
        page.select_option(field, value) if page.locator(f"select{field}").count() else page.fill(field, value)
    page.wait_for_selector("#outcome dl")  # the estimate came
    visitor.follow("main button.primary", to="**/tasks/task_*")
    return page.url.rpartition("/")[2]


def test_a_task_made_by_clicks_comes_back_as_an_adapter_that_peft_loads(
    visitor: tuple[RunningStack, Visitor], tmp_path: Path
) -> None:
    motet, visits = visitor
    rows, validation = tmp_path / "rows.jsonl", gsm8k(12, skip=64)
    rows.write_text("".join(json.dumps(row) + "\n" for row in gsm8k(40)))
    fields = {
        "search_space.learning_rate": "3e-3, 1e6",
        "search_space.rank": "4, 8",
        "search_space.batch_size": "2",
        "training.epochs": "3",
        "training.max_seq_len": "256",
        "early_exit.policy": "alto",
        "early_exit.warmup_fraction": "0.2",
    }
    task = submitted(visits, rows, "by clicks", **fields)
    page = visits.page
    page.wait_for_selector("html[data-drawn]", timeout=240_000)
    before = page.evaluate(PICTURE)
    eventually(page, f"before => {PICTURE} !== before", before)  # the curves move by themselves
    page.wait_for_selector("#job-rows .reason", timeout=240_000)
    assert "stopped early" in page.text_content("#facts")
    page.wait_for_selector("#task-state >> text=succeeded", timeout=240_000)

    with page.expect_download() as download:
        page.click("text=Download the best adapter")
    folder = unpacked(download.value.path().read_bytes(), tmp_path)
    losses = peft_losses(folder, validation, tmp_path)
    assert losses["adapter_loss"] < losses["base_loss"]
    assert motet.task(task)["winner"]["adapter_id"] in page.content()


def test_two_tasks_are_compared_and_one_is_cancelled(visitor: tuple[RunningStack, Visitor], tmp_path: Path) -> None:
    motet, visits = visitor
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in gsm8k(40)))
    endless = {"search_space.learning_rate": "1e-3", "search_space.rank": "8", "training.epochs": "100"}
    long = submitted(visits, rows, "a long one", **endless, **{"early_exit.policy": "none", "training.max_seq_len": "64"})
    page = visits.page
    page.wait_for_selector("html[data-drawn]", timeout=240_000)
    visits.follow("#acts >> text=Cancel…")
    visits.follow("text=Cancel the task")
    page.wait_for_selector("#task-state >> text=cancelled")
    assert motet.task(long)["status"] == "cancelled"

    visits.open("/tasks")
    page.check(f"input[value={long}]")
    page.locator("#rows input[type=checkbox]").nth(1).check()
    visits.follow("text=Compare the chosen")
    page.wait_for_selector("#plot canvas")
    assert page.locator("table.list >> nth=0 >> tbody tr").count() == 2
    assert "training.epochs" in page.text_content("main")
