"""The "Try it" box of a task's page, in a real browser: both answers beside each other as they come, refusals in words."""

from typing import Any

import pytest

from service.completions.models import CompletionRequest
from service.tenants.member_roles import Role
from tests.service.fleet.scripted import completed, moved, points
from tests.service.live_server import until
from tests.service.openai.completions.completion_executor import Executor, piece, text
from tests.service.sample_tasks import jobs_of
from tests.service.web.page_samples import HOSTILE, drawn
from tests.service.web.test_accessibility import CUT, violations


@pytest.fixture
def executor(tenant, new_node, plan) -> Executor:
    """What answers for the base of a task that trains: its first job has an adapter, its second a checkpoint."""
    node = new_node(said={"capabilities": None})
    task = tenant.task(name="a sweep")
    plan()
    placement = node.take(task["id"])
    node.leases(placement.pulse())
    placement.report(placement.attached(), moved(0, "warmup"), moved(1, "warmup"))
    placement.report(placement.adapter(0, 1.25), completed(0), points(1, [1, 2, 3]))
    placement.report(placement.checkpoint({1: 3}))
    return Executor(placement)


def flat(said: str | None) -> str:
    return " ".join((said or "").split())


def both(executor: Executor) -> dict[bool, dict[str, Any]]:
    """The two requests of one prompt, by whether an adapter is asked."""
    found = [executor.next(), executor.next()]
    return {work["adapter"] is not None or work["checkpoint"] is not None: work for work in found}


def opened(visitor, executor: Executor):
    page = visitor.open(f"/tasks/{executor.placement.given.task_id}")
    drawn(page)
    return page


def test_an_adapter_and_the_base_answer_side_by_side(visitor, executor, database) -> None:
    page = opened(visitor, executor)
    assert page.locator("#try-answers").is_hidden()
    names = page.locator("#try-model option").all_text_contents()
    assert [name.partition(" (")[0] for name in names] == ["job 0", "job 1, its newest checkpoint"]
    page.fill("#try-form [name=prompt]", "How many?")
    page.focus("#try-form [name=prompt]")
    page.keyboard.press("Control+Enter")
    works = both(executor)
    assert [work["messages"][0]["content"] for work in works.values()] == ["How many?"] * 2
    assert works[True]["adapter"][0]["path"].startswith("adapter_")
    executor.sends(piece(works[True], 1, text("fo")), piece(works[False], 1, text(HOSTILE)))
    page.wait_for_selector("#try-tuned .said:has-text('fo')")
    assert page.get_attribute("#try-tuned .said", "aria-busy") == "true"
    end = {"finish_reason": "length"}
    executor.sends(piece(works[True], 2, text("ur", **end), over=True), piece(works[False], 2, text("", **end), over=True))
    page.wait_for_selector("#try-status:has-text('The answers are there.')")
    assert page.text_content("#try-tuned .said") == "four"
    assert flat(page.text_content("#try-tuned .end")) == "4 tokens, cut at the longest"
    assert page.text_content("#try-base .said") == HOSTILE
    assert page.evaluate("window.hacked") is None

    with database.begin() as session:
        checkpointed = jobs_of(session, executor.placement.given.task_id)[1].id
    page.select_option("#try-model", checkpointed)
    page.check("#try-form [name=plain]")
    page.click("#try-ask")
    works = both(executor)
    assert works[True]["checkpoint"]["file"]["step"] == 3
    assert works[True]["prompts"] == ["How many?"]
    page.click("#try-stop")
    page.wait_for_selector("#try-status:has-text('Stopped.')")
    assert page.text_content("#try-base .end") == "stopped"

    def ended() -> bool:
        with database.begin() as session:
            return all(session.get_one(CompletionRequest, work["request_id"]).state == "ended" for work in works.values())

    until(ended)


def test_without_scripts_there_is_no_form_that_asks_nobody(visit, tenant, executor) -> None:
    visitor = visit(java_script_enabled=False)
    visitor.sign_in(tenant.key)
    page = visitor.open(f"/tasks/{executor.placement.given.task_id}")
    assert page.locator("#try-form").is_hidden()
    assert page.locator("#try-answers").is_hidden()


def test_who_asks_again_waits_for_the_new_answers(visitor, executor) -> None:
    page = opened(visitor, executor)
    page.fill("#try-form [name=prompt]", "How many?")
    page.click("#try-ask")
    both(executor)
    page.fill("#try-form [name=prompt]", "How few?")
    page.click("#try-ask")
    works = both(executor)
    for side in ("base", "tuned"):
        assert page.text_content(f"#try-{side} .end") == "waiting for an executor of the base…"
        assert page.get_attribute(f"#try-{side} .said", "aria-busy") == "true"
    for work in works.values():
        executor.sends(piece(work, 1, text("two", finish_reason="stop"), over=True))
    page.wait_for_selector("#try-status:has-text('The answers are there.')")
    assert [page.text_content(f"#try-{side} .said") for side in ("base", "tuned")] == ["two", "two"]


def test_refusals_are_said_in_words(visitor, executor, server, monkeypatch) -> None:
    monkeypatch.setitem(server.state.settings.__dict__, "completion_wait_seconds", 0.1)
    page = opened(visitor, executor)
    page.fill("#try-form [name=prompt]", "How many?")
    page.click("#try-ask")
    page.wait_for_selector("#try-base .end[role=alert]")
    page.wait_for_selector("#try-tuned .end[role=alert]")
    assert "No executor that runs base model small in bf16" in page.text_content("#try-base .end")
    assert page.text_content("#try-status") == "Not everybody answered."
    visitor.expected("503")
    page.fill("#try-form [name=max_tokens]", "999999")
    page.click("#try-ask")
    for side in ("base", "tuned"):
        page.wait_for_selector(f"#try-{side} .end:has-text('this service generates at most')")
    visitor.expected("400")


def test_the_box_is_csrf_safe_and_for_those_who_may_write(visit, visitor, executor, new_member, tenant) -> None:
    opened(visitor, executor)
    said = {"model": "small", "messages": [{"role": "user", "content": "x"}]}
    forged = visitor.context.request.post(f"{visitor.url}/openai/v1/chat/completions", data=said)
    assert (forged.status, forged.json()["error"]["code"]) == (403, "csrf_refused")
    reads = visit()
    reads.sign_in(new_member(Role.VIEWER, of=tenant).key)
    page = opened(reads, executor)
    assert page.locator("#try-it").count() == 0


def test_the_adapters_of_a_task_are_shown_whole(visitor, executor) -> None:
    page = opened(visitor, executor)
    table = "document.querySelector('#adapters .scroll')"
    assert page.evaluate(f"{table}.scrollWidth <= {table}.clientWidth")


@pytest.mark.parametrize(("colours", "width"), [("light", 1280), ("dark", 390)])
def test_the_box_is_accessible_and_fits_a_phone(visitor, executor, colours, width) -> None:
    visitor.page.emulate_media(color_scheme=colours)
    visitor.page.set_viewport_size({"width": width, "height": 860})
    page = opened(visitor, executor)
    page.fill("#try-form [name=prompt]", "w" * 900)
    page.click("#try-ask")
    for work in both(executor).values():
        executor.sends(piece(work, 1, text("w" * 900 + " sheep" * 40, finish_reason="stop"), over=True))
    page.wait_for_selector("#try-status:has-text('The answers are there.')")
    assert violations(visitor) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width + 1
    if width < 921:  # on wider screens tables are no cards, and one that is wider than its place scrolls in it
        assert page.evaluate(CUT) == []
