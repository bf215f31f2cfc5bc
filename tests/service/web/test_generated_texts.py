"""What the base and the adapters wrote, on a task's page in a real browser: live, under attack, on a phone, in the dark."""

import pytest

from contract.messages.report_messages import TextSample, TextsEvaluated
from service.tasks import milestone_evaluations
from service.tasks.lifecycle.change_notices import bump_version_and_notify
from service.tasks.lifecycle.event_log import EventKind, record
from service.tasks.models import Task
from service.tasks.pairwise_wins import wins_over
from service.tasks.selection import Candidate, choose
from service.tasks.text_evaluations import store
from tests.service.sample_tasks import adapter, jobs_of
from tests.service.web import sweeps
from tests.service.web.page_samples import FOLDER, GRID, HOSTILE, drawn
from tests.service.web.test_accessibility import CUT, violations

ASKED = {"metrics": [{"type": "exact_match"}, {"type": "rouge_l", "name": "rouge"}], "max_prompts": 2}


def said(job: int | None, rouge: float, text: str, prompt: str = "How many sheep?") -> TextsEvaluated:
    scores = {"exact_match": 0.0, "rouge": rouge}
    sample = TextSample(prompt=prompt, reference="4 sheep", text=text, finish_reason="length", scores=scores)
    each = {name: [score, score] for name, score in scores.items()}
    return TextsEvaluated(job=job, prompts=2, scores=scores, prompt_scores=each, samples=[sample, sample])


def report(database, task_id: str, *events: TextsEvaluated) -> None:
    with database.begin() as session:
        task = session.get_one(Task, task_id, with_for_update=True)
        jobs = jobs_of(session, task_id)
        for event in events:
            store(session, task, None if event.job is None else jobs[event.job], event)
            record(session, task, EventKind.BASE, {"val_loss": 3.0, "scores": event.scores})
        bump_version_and_notify(session, task)


@pytest.fixture
def asking(tenant, database):
    task = tenant.task(name="a sweep", search_space=GRID, evaluation=ASKED, select_by="rouge")["id"]
    sweeps.begin(database, task)
    return task


def flat(text: str) -> str:
    return " ".join(text.split())


def test_a_task_that_asks_for_nothing_says_how_to_ask(visitor, tenant):
    page = visitor.open(f"/tasks/{tenant.task(name='plain')['id']}")
    assert "With evaluation in its spec (in the form: “Score the texts that it writes”), a task" in flat(
        page.text_content("#texts")
    )


def test_texts_come_as_they_are_generated_the_winners_beside_the_bases(visitor, database, storage, asking):
    page = visitor.open(f"/tasks/{asking}")
    drawn(page)
    assert "No texts yet" in page.text_content("#texts")
    report(database, asking, said(None, 0.125, "SELECT 4"), *(said(job, job / 8, f"{job} sheep") for job in range(6)))
    page.wait_for_selector("#text-scores")
    rows = [flat(row) for row in page.locator("#text-scores tbody tr").all_text_contents()]
    assert rows[0] == "the base alone0.0000.125"
    assert rows[6] == "job 50.0000.625"
    assert page.locator("#texts .sample").count() == 2
    first = flat(page.locator("#texts .sample").first.text_content())
    assert first.startswith("Prompt 1 How many sheep? reference4 sheep")
    assert "SELECT 4 (cut at max_new_tokens)" in first
    assert [f"{job} sheep" in first for job in range(6)] == [False, False, True, True, True, True], "the best four"
    assert "Texts of 2 more jobs" in flat(page.text_content("#texts"))
    with database.begin() as session:
        first = jobs_of(session, asking)[0]
        adapter(session, storage, first, FOLDER)
        winning = session.get_one(Task, asking)
        winning.winner_job_id, made = first.id, Candidate(0, 8, 1.25, None)
        wins = wins_over({"rouge": [0.125] * 2}, {"rouge": [0.5, 0.125]}, 1)
        winning.selection = choose([made], None)[1].model_copy(update={"pairwise": wins}).model_dump(mode="json")
    page = visitor.open(f"/tasks/{asking}")
    assert flat(page.text_content("#text-scores .best")).startswith("job 0 (winner)")
    assert [flat(one)[:15] for one in page.locator("#texts .sample").first.locator("dt").all_text_contents()][1:3] == [
        "the base alone ",
        "job 0 (winner) ",
    ]
    assert "by rouge the adapter's text is better than the base's on 1 prompts, worse on 0" in flat(
        page.text_content("#pairwise")
    )
    answer = page.request.get(visitor.url + page.get_attribute("#texts a", "href"))
    assert answer.text().count("rouge") == 7


def test_prompts_stay_open_or_closed_as_the_reader_left_them(visitor, database, asking):
    report(database, asking, said(None, 0.125, "SELECT 4"))
    page = visitor.open(f"/tasks/{asking}")
    drawn(page)
    assert page.locator("#texts details").evaluate_all("all => all.map((one) => one.open)") == [True, False]
    for prompt in page.locator("#texts summary").all():
        prompt.click()
    page.locator("h1").click()  # what has the focus is not patched
    report(database, asking, said(2, 0.25, "2 sheep"))
    page.wait_for_selector("#texts >> text=2 sheep", state="attached")
    assert page.locator("#texts details").evaluate_all("all => all.map((one) => one.open)") == [False, True]


def test_scores_at_milestones_are_a_table_of_their_own(visitor, tenant, database):
    task = tenant.task(search_space=GRID, evaluation={**ASKED, "milestones": [0.5]})["id"]
    sweeps.begin(database, task)
    report(database, task, said(None, 0.125, "SELECT 4"))
    page = visitor.open(f"/tasks/{task}")
    drawn(page)
    assert page.locator("#milestones").count() == 0
    with database.begin() as session:
        held = session.get_one(Task, task, with_for_update=True)
        for index, milestone, step in ((1, 9, 9), (0, 9, 11)):
            event = said(index, step / 20, "4").model_copy(update={"step": step, "milestone": milestone})
            told = milestone_evaluations.store(session, held, jobs_of(session, task)[index], milestone, event)
            record(session, held, EventKind.JOB, {"job": index, "status": "training", "step": step, **told})
        bump_version_and_notify(session, held)
    page.wait_for_selector("#milestone-scores")
    rows = [flat(row) for row in page.locator("#milestone-scores tbody tr").all_text_contents()]
    assert rows == ["job 0110.0000.550", "job 190.0000.450"]
    assert page.locator("#text-scores tbody tr").count() == 1
    answer = page.request.get(visitor.url + page.get_attribute("#milestones a", "href"))
    assert answer.text().count("rouge") == 2
    assert "job 0 wrote texts at step 11: exact_match 0.000, rouge 0.550" in flat(page.text_content("body"))
    assert violations(visitor) == []


def test_what_a_model_writes_is_text(visitor, database, asking):
    report(database, asking, said(None, 0.5, HOSTILE, HOSTILE), said(0, 0.5, HOSTILE))
    page = visitor.open(f"/tasks/{asking}")
    drawn(page)
    assert HOSTILE in page.locator("#texts .sample .said").first.text_content()
    assert page.locator("#texts .sample").first.locator("dd", has_text=HOSTILE).count() == 2
    report(database, asking, said(1, 0.75, HOSTILE + "again"))
    page.wait_for_selector("#texts >> text=again")
    assert page.locator("#texts script, #texts img").count() == 0
    assert page.evaluate("window.hacked") is None


def test_no_visitor_sees_another_tenants_texts(visitor, new_tenant, database, asking):
    report(database, asking, said(None, 0.5, "a secret"))
    other = new_tenant()
    for path in ("evaluations", "evaluations.csv"):
        assert other.get(f"/v1/tasks/{asking}/{path}").status_code == 404


@pytest.mark.parametrize(("colours", "width"), [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)])
def test_texts_are_accessible_and_fit_a_phone(visitor, database, asking, colours, width):
    report(database, asking, *(said(job, 0.5, "w" * 900 + " " + "sheep " * 40) for job in (None, 0, 1)))
    visitor.page.emulate_media(color_scheme=colours)
    visitor.page.set_viewport_size({"width": width, "height": 860})
    page = visitor.open(f"/tasks/{asking}")
    drawn(page)
    assert violations(visitor) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width + 1
    assert page.evaluate(CUT) == []
