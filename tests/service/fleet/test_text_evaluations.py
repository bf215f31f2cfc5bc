"""Text evaluations over the wire: stored, listed, as CSV, in events and READMEs; and the winner that a metric selects."""

import io
import json
import tarfile

import pytest
from sqlalchemy import select

from contract.compatibility.capabilities import understood
from service.tasks.models import TextEvaluation
from service.tasks.pairwise_wins import wilson
from tests.service.fleet.scripted import completed, moved, points

PREFERENCE = {
    "input": {"messages": [{"role": "user", "content": "2+2?"}]},
    "preferred_output": [{"role": "assistant", "content": "4"}],
    "non_preferred_output": [{"role": "assistant", "content": "5"}],
}
ASKED = {"metrics": [{"type": "exact_match"}, {"type": "rouge_l", "name": "rouge"}], "max_prompts": 2}
SAMPLE = {
    "prompt": "2+2?",
    "reference": "4",
    "text": "4",
    "finish_reason": "stop",
    "scores": {"exact_match": 1.0, "rouge": 1.0},
}


def texts(job: int | None, exact: float, rouge: float, **more) -> dict:
    """The means of two prompts, which differ by 0.02, the base's by a bit more, so that gains have a standard error."""
    reach = 0.012 if job is None else 0.01
    scores = {"exact_match": exact, "rouge": rouge}
    each = {name: [max(0.0, score - reach), min(1.0, score + reach)] for name, score in scores.items()}
    return {"kind": "texts_evaluated", "job": job, "step": None if job is None else 18, "prompts": 2, "scores": scores,
            "prompt_scores": each, "samples": [SAMPLE], "tokens": 40, "seconds": 0.5, **more}  # fmt: skip


def unscored(job: int, why: str) -> dict:
    return texts(job, 0, 0, scores={}, prompt_scores={}, samples=[], error=why)


@pytest.fixture
def placed(tenant, new_node, plan):
    def place(**spec):
        node = new_node(said={"capabilities": sorted(understood())})
        task = tenant.task(evaluation=ASKED, **spec)
        plan()
        taken = node.take(task["id"])
        taken.report(taken.attached())
        return taken

    return place


def finish(taken, *scores: tuple[float, float], losses: tuple[float, float] = (1.25, 1.5)) -> None:
    taken.report(moved(0, "warmup"), moved(1, "warmup"), points(0, [1]), points(1, [1]), texts(None, 0.0, 0.125))
    for job, ((exact, rouge), loss) in enumerate(zip(scores, losses, strict=True)):
        taken.report(texts(job, exact, rouge), taken.adapter(job, loss), completed(job, 20, 18, loss))


@pytest.mark.parametrize(
    ("select_by", "scores", "winner"),
    [
        ("val_loss", ((0.0, 0.0), (1.0, 1.0)), 0),
        ("rouge", ((0.5, 0.25), (0.0, 0.75)), 1),
        ("exact_match", ((0.5, 0.25), (0.0, 0.75)), 0),
        ("exact_match", ((0.5, 0.25), (0.5, 0.75)), 0),
    ],
)
def test_the_winner_is_what_the_task_selects_by(tenant, placed, select_by, scores, winner):
    taken = placed(select_by=select_by)
    finish(taken, *scores)
    task = tenant.get(f"/v1/tasks/{taken.given.task_id}").json()
    assert (task["status"], task["winner"]["index"]) == ("succeeded", winner)


def test_the_selection_by_a_metric_has_its_interval_and_gain_over_the_base(tenant, placed):
    taken = placed(select_by="rouge")
    finish(taken, (0.5, 0.25), (0.0, 0.75))
    chosen = tenant.get(f"/v1/tasks/{taken.given.task_id}").json()["selection"]
    assert (chosen["metric"], chosen["rule"], chosen["rows"], chosen["tied"]) == ("rouge", "not_surely_worse", 2, [1])
    assert chosen["value"]["low"] < chosen["value"]["mean"] == pytest.approx(0.75)
    assert chosen["gain"]["mean"] == pytest.approx(0.625)
    assert chosen["verdict"].startswith("job 1 won: rouge 0.7500 (")


def test_what_beats_the_base_is_a_question_of_the_metric(tenant, placed):
    """Both jobs have a lower loss than the base, and write worse texts."""
    taken = placed(select_by="rouge")
    taken.report({"kind": "base_evaluated", "val_loss": 9.0})
    finish(taken, (0.5, 0.0), (0.0, 0.07))
    task = tenant.get(f"/v1/tasks/{taken.given.task_id}").json()
    assert (task["selection"]["beats_base"], task["base_val_loss"]) == (False, 9.0)
    assert task["selection"]["verdict"].startswith("nothing beat the base: the best, job 1, has rouge 0.07")
    assert task["selection"]["verdict"].endswith("by 2 prompts, so it is worse than the base")


def test_where_no_adapter_could_be_scored_the_loss_decides_and_the_verdict_says_why(tenant, placed):
    taken = placed(select_by="rouge")
    taken.report(moved(0, "warmup"), moved(1, "warmup"), points(0, [1]), points(1, [1]), texts(None, 0.0, 0.125))
    for job, loss in ((0, 1.5), (1, 1.25)):
        taken.report(unscored(job, "no memory"), taken.adapter(job, loss), completed(job, 20, 18, loss))
    task = tenant.get(f"/v1/tasks/{taken.given.task_id}").json()
    assert (task["winner"]["index"], task["selection"]["metric"], task["selection"]["unscored"]) == (1, "val_loss", [0, 1])
    assert task["selection"]["verdict"].startswith(
        "no adapter was scored by rouge (no memory), so the validation loss decided: "
    )


def test_an_adapter_without_scores_loses_to_one_that_has_any(tenant, placed):
    taken = placed(select_by="rouge")
    taken.report(moved(0, "warmup"), moved(1, "warmup"), points(0, [1]), points(1, [1]))
    taken.report(unscored(0, "no memory"), taken.adapter(0, 0.5), completed(0, 20, 18, 0.5))
    taken.report(texts(1, 0, 0), taken.adapter(1, 1.5), completed(1, 20, 18, 1.5))
    task = tenant.get(f"/v1/tasks/{taken.given.task_id}").json()
    assert (task["winner"]["index"], task["selection"]["unscored"]) == (1, [0])
    assert task["selection"]["verdict"].endswith("; 1 other could not be scored by rouge")
    first = tenant.get(f"/v1/tasks/{taken.given.task_id}/evaluations").json()["data"][0]
    assert (first["scores"], first["error"]) == ({}, "no memory")


def test_a_file_of_prompts_is_the_tasks_to_read_and_to_keep(tenant, new_node, plan):
    prompts = tenant.file([{"prompt": "2+2?", "completion": "4"}])
    node = new_node(said={"capabilities": sorted(understood())})
    task = tenant.task(evaluation={**ASKED, "file_id": prompts})
    plan()
    taken = node.take(task["id"])
    assert taken.given.prompts_file.file_id == prompts
    held = taken.call("GET", f"files/{prompts}")
    assert json.loads(held.content) == {"prompt": "2+2?", "completion": "4"}
    refused = tenant.delete(f"/v1/files/{prompts}")
    assert refused.status_code == 409
    assert task["id"] in refused.text
    assert prompts not in {one["id"] for one in tenant.get("/v1/files", params={"unused": True}).json()["data"]}


def test_in_a_search_over_beta_jobs_of_equal_texts_are_told_apart_by_the_pairs_that_they_order(tenant, new_node, plan):
    """Losses of different betas say nothing of each other: the job of the higher one wins."""
    node = new_node(said={"capabilities": sorted(understood())})
    space = {"learning_rate": [1e-4], "batch_size": [4], "beta": [0.1, 0.5]}
    pairs = {"dataset": {"file_id": tenant.file([PREFERENCE] * 20)}, "objective": {"type": "dpo"}, "search_space": space}
    task = tenant.task(evaluation=ASKED, select_by="rouge", **pairs)
    plan()
    taken = node.take(task["id"])
    taken.report(taken.attached(), moved(0, "warmup"), moved(1, "warmup"), points(0, [1]), points(1, [1]))
    for job, (loss, wrong) in enumerate([(0.25, [1.0, 0.0]), (1.5, [0.0, 0.0])]):
        scores = {"metric": "error", "totals": wrong}
        taken.report(texts(job, 0.0, 0.5), taken.adapter(job, loss) | {"scores": scores}, completed(job, 20, 18, loss))
    found = tenant.get(f"/v1/tasks/{task['id']}").json()
    assert (found["winner"]["index"], found["selection"]["tied"]) == (1, [0, 1])


def test_only_a_file_of_prompts_with_answers_is_taken(tenant, small_model):
    text, pairs = tenant.file([{"text": "all of it"}]), tenant.file([PREFERENCE])
    for named, words in [(text, "is a text file; prompts with references"), (pairs, "is a preference file"),
                         ("file_none", "there is no file 'file_none'")]:  # fmt: skip
        refused = tenant.post("/v1/tasks", json=tenant.spec(tenant.file(), evaluation={**ASKED, "file_id": named}))
        assert refused.status_code == 422
        (error,) = refused.json()["errors"]
        assert error["field"] == "evaluation.file_id"
        assert words in error["message"]


def test_notes_are_stored_and_say_why_a_metric_did_not_select(tenant, placed):
    note = "metric 'rouge' has no result: time was up after 3 of 9 texts"
    taken = placed(select_by="rouge")
    taken.report(moved(0, "warmup"), moved(1, "warmup"), points(0, [1]), points(1, [1]), texts(None, 0.0, 0.125))
    for job, loss in ((0, 1.5), (1, 1.25)):
        given_up = texts(job, 0, 0, scores={"exact_match": 0.0}, prompt_scores={"exact_match": [0, 0]}, notes=["a row", note])
        taken.report(given_up, taken.adapter(job, loss), completed(job, 20, 18, loss))
    task = tenant.get(f"/v1/tasks/{taken.given.task_id}").json()
    assert task["winner"]["index"] == 1
    assert task["selection"]["verdict"].startswith(f"no adapter was scored by rouge ({note}), so the validation loss decided")
    found = tenant.get(f"/v1/tasks/{taken.given.task_id}/evaluations").json()["data"]
    assert [one["notes"] for one in found] == [[], ["a row", note], ["a row", note]]


def test_evaluations_are_listed_with_samples_and_as_csv_and_told_as_events(tenant, placed):
    taken = placed(select_by="rouge")
    assert taken.node.desired().placements[0].base_texts_evaluated is False
    taken.report(texts(None, 0.0, 0.5))
    assert taken.node.desired().placements[0].base_texts_evaluated is True
    finish(taken, (0.5, 0.25), (0.0, 0.75))
    path = f"/v1/tasks/{taken.given.task_id}/evaluations"
    found = tenant.get(path).json()["data"]
    assert [(one["index"], one["scores"]["rouge"]) for one in found] == [(None, 0.125), (0, 0.25), (1, 0.75)]
    first = tenant.get(path, params={"limit": 2}).json()
    rest = tenant.get(path, params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert [*first["data"], *rest["data"]] == found
    assert rest["next_cursor"] is None
    for cursor in ("x", first["next_cursor"] + "9"):
        assert tenant.get(path, params={"cursor": cursor}).status_code == 422
    assert found[1]["samples"] == [SAMPLE]
    assert found[1]["step"] == 18
    lines = tenant.get(f"{path}.csv").text.splitlines()
    assert lines[:2] == ["job,job_id,step,prompts,metric,score", ",,,2,exact_match,0.0"]
    assert len(lines) == 1 + 2 * 3
    assert lines[-1].endswith(",18,2,rouge,0.75")
    events = tenant.get(f"/v1/tasks/{taken.given.task_id}/events").text
    assert events.count('"rouge": 0.75') + events.count('"rouge":0.75') == 1
    told = [json.loads(line.removeprefix("data: ")) for line in events.splitlines() if line.startswith("data: ")]
    scores = [one["data"]["scores"] for one in told if "scores" in one.get("data", {})]
    assert [one["rouge"] for one in scores] == [0.5, 0.125, 0.25, 0.75]


def test_an_adapters_readme_shows_its_scores_beside_the_bases(tenant, placed):
    taken = placed(select_by="rouge")
    finish(taken, (0.5, 0.25), (0.0, 0.75))
    archive = tenant.get(f"/v1/tasks/{taken.given.task_id}/adapter").content
    with tarfile.open(fileobj=io.BytesIO(archive)) as folder:
        name = next(name for name in folder.getnames() if name.endswith("README.md"))
        text = folder.extractfile(name).read().decode()
    assert "| the base alone | 0.0000 | 0.1250 |" in text
    assert "| job 1 (this one) | 0.0000 | 0.7500 |" in text


def test_an_adapters_readme_shows_what_it_and_the_base_write(tenant, placed):
    """In blocks that no text can end; the text of another job is not there."""
    taken, fenced = placed(), "```\n# No heading\n````"
    taken.report(moved(0, "warmup"), moved(1, "warmup"), points(0, [1]), points(1, [1]))
    wrote = ((None, "about four"), (0, fenced), (1, "five"))
    for job, text in wrote:
        taken.report(texts(job, 0.5, 0.25, samples=[SAMPLE | {"prompt": "long " * 500 + "end?", "text": text}] * 4))
    for job in (0, 1):
        taken.report(taken.adapter(job, 1.25 + job), completed(job, 20, 18, 1.25 + job))
    won = tenant.get(f"/v1/tasks/{taken.given.task_id}").json()["winner"]
    assert won["index"] == 0
    told = tenant.get(f"/v1/adapters/{won['adapter_id']}/files/README.md").text
    assert told.count("The base alone (exact_match 1.0000, rouge 1.0000):\n\n```text\nabout four\n```\n") == 3
    assert told.count(f"This adapter (exact_match 1.0000, rouge 1.0000):\n\n`````text\n{fenced}\n`````\n") == 3
    assert "long end?\n```\n\nReference:\n\n```text\n4\n```\n" in told
    assert "long " * 120 not in told
    assert "five" not in told


def test_the_winner_is_compared_with_the_base_prompt_by_prompt(tenant, placed):
    """In the selection, in the README of the winner's adapter and in no other's."""
    taken = placed(select_by="rouge")
    taken.report(moved(0, "warmup"), moved(1, "warmup"), points(0, [1]), points(1, [1]))
    base, best = ({"exact_match": [0, 1], "rouge": each} for each in ([0.0, 0.25], [0.5, 0.75]))
    taken.report(texts(None, 0.5, 0.125, prompt_scores=base))
    for job, each in ((0, base), (1, best)):
        rouge = sum(each["rouge"]) / 2
        taken.report(texts(job, 0.5, rouge, prompt_scores=each), taken.adapter(job, 1.25), completed(job, 20, 18, 1.25))
    task = tenant.get(f"/v1/tasks/{taken.given.task_id}").json()
    found = task["selection"]["pairwise"]
    assert [(one["metric"], one["wins"], one["ties"], one["losses"]) for one in found] == [
        ("exact_match", 0, 2, 0),
        ("rouge", 2, 0, 0),
    ]
    low, high = wilson(2, 2, 2)
    assert (found[0]["win_share"], found[1]["win_share"]) == (None, {"share": 1.0, "low": low, "high": high})
    jobs = tenant.get(f"/v1/tasks/{taken.given.task_id}/jobs").json()["data"]
    said = "By rouge the adapter's text is better than the base's on 2 prompts"
    for job, told in zip(jobs, (False, True), strict=True):
        archive = tenant.get(f"/v1/adapters/{job['adapter_id']}/archive")
        assert archive.status_code == 200, archive.text
        with tarfile.open(fileobj=io.BytesIO(archive.content)) as folder:
            name = next(name for name in folder.getnames() if name.endswith("README.md"))
            assert (said in folder.extractfile(name).read().decode()) == told


def test_a_task_without_texts_has_no_pairs(tenant, new_node, plan):
    node, task = new_node(), tenant.task()
    plan()
    taken = node.take(task["id"])
    taken.report(taken.attached(), moved(0, "warmup"), moved(1, "warmup"), points(0, [1]), points(1, [1]))
    for job in (0, 1):
        taken.report(taken.adapter(job, 1.25), completed(job, 20, 18, 1.25))
    assert tenant.get(f"/v1/tasks/{task['id']}").json()["selection"]["pairwise"] == []


def test_an_evaluation_that_is_repeated_after_a_rewind_replaces_the_first(tenant, placed, database):
    taken = placed()
    taken.report(moved(0, "warmup"), moved(1, "warmup"), points(0, [1]), texts(0, 0.25, 0.5))
    taken.report(texts(0, 0.5, 0.75))
    with database.begin() as session:
        rows = list(session.scalars(select(TextEvaluation).where(TextEvaluation.task_id == taken.given.task_id)))
    assert [row.scores["exact_match"] for row in rows] == [0.5]


def test_an_evaluation_of_a_job_that_has_ended_or_never_was_is_refused(placed):
    taken = placed()
    taken.report(moved(0, "warmup"), points(0, [1]), texts(0, 0.5, 0.25), taken.adapter(0, 1.25), completed(0, 20, 18, 1.25))
    for job, why in ((7, "not 7"), (0, "job 0 has ended as completed")):
        refused = taken.send(texts(job, 0, 0))
        assert refused.status_code == 422
        assert why in refused.text


def test_a_text_with_a_nul_character_is_stored_with_a_replacement(tenant, placed):
    """Models generate NUL, and Postgres stores none."""
    taken = placed()
    taken.report(texts(None, 0.0, 0.5, samples=[{**SAMPLE, "text": "a\0b"}]))
    found = tenant.get(f"/v1/tasks/{taken.given.task_id}/evaluations").json()["data"]
    assert found[0]["samples"][0]["text"] == "a\ufffdb"
