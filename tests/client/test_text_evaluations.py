"""Scores of generated texts as both clients read them and as the command line prints them."""

import asyncio
from collections.abc import Callable

import pytest
from motet import AsyncClient, Client
from motet.api.resources import PairwiseWins, TextEvaluation
from motet.cli import app
from motet.display.scored_texts import drawn
from rich.console import Console
from typer.testing import CliRunner

from tests.client.scripted_server import TASK, Script, body

Served = Callable[[Script], Client]


def evaluation(index: int | None, rouge: float, text: str, **more) -> dict:
    sample = {"prompt": "2+2?", "reference": "4", "text": text, "finish_reason": "stop", "scores": {"rouge": rouge}}
    job = None if index is None else f"job_{index}"
    return {"job_id": job, "index": index, "prompts": 9, "scores": {"rouge": rouge}, "samples": [sample], **more}


BASE, FIRST = evaluation(None, 0.25, "the SELECT"), evaluation(0, 0.75, "[b]four[/b]", step=18)
BROKEN = evaluation(1, 0.0, "", scores={}, samples=[], error="the device had no memory", notes=["2 rows have no prompt"])


def printed(found: list[dict], samples: int) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(drawn([TextEvaluation.model_validate(one) for one in found], samples))
    return capture.get()


def test_scores_and_texts_of_the_base_stand_beside_the_adapters() -> None:
    said = printed([BASE, FIRST, BROKEN], 2)
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert lines[0] == "of rouge prompts step notes"
    assert lines[1:4] == ["the base 0.250 9", "job 0 0.750 9 18", "job 1 9 the device had no memory; 2 rows have no prompt"]
    texts = ["the base (rouge 0.250): the SELECT", "job 0 (rouge 0.750): [b]four[/b]"]
    assert lines[5:9] == ["prompt 1: 2+2?", "reference: 4", *texts]
    assert len(lines) == 9


def test_long_texts_are_cut_where_they_tell_least() -> None:
    long = evaluation(0, 0.5, "t" * 5000)
    long["samples"][0]["prompt"] = "p" * 5000 + "?"
    said = printed([long], 1).replace("\n", "")
    assert "…" + "p" * 599 + "?" in said
    assert said.count("t" * 10) < 61
    assert said.endswith("…")
    assert "prompt 1" not in printed([long], 0)


def test_texts_at_a_milestone_are_told_apart_from_those_at_the_end() -> None:
    lines = [" ".join(line.split()) for line in printed([FIRST, FIRST | {"step": 9, "milestone": 8}], 1).splitlines()]
    assert lines[1:3] == ["job 0 0.750 9 18", "job 0 at step 9 0.750 9 9"]
    assert lines[-2:] == ["job 0 (rouge 0.750): [b]four[/b]", "job 0 at step 9 (rouge 0.750): [b]four[/b]"]


@pytest.mark.parametrize("milestones", [[], [0.5]])
def test_the_command_reads_milestones_where_the_task_has_some(served: Served, monkeypatch, milestones: list[float]) -> None:
    spec = TASK["spec"] | {"evaluation": {"metrics": [{"type": "rouge_l"}], "milestones": milestones}}
    answers = [(200, {}, body(**TASK | {"spec": spec})), (200, {}, body(data=[BASE, FIRST], next_cursor=None))]
    more = evaluation(0, 0.5, "four", step=9, milestone=9)
    script = Script(*answers, *([(200, {}, body(data=[more], next_cursor=None))] if milestones else []))
    monkeypatch.setenv("MOTET_API_URL", served(script).api_url)
    monkeypatch.setenv("MOTET_API_KEY", "mk_1")
    done = CliRunner().invoke(app, ["evaluations", "task_1"])
    assert done.exit_code == 0, done.output
    assert ("job 0 at step 9" in done.output) == bool(milestones)
    assert ["at=milestones" in asked for asked in script.asked[1:]] == [False, *([True] if milestones else [])]


def test_the_winner_against_the_base_is_told_between_scores_and_texts() -> None:
    console = Console(width=160)
    wins = PairwiseWins(metric="rouge", wins=2, ties=1, losses=0, sentence="by rouge it is better on 2 prompts")
    with console.capture() as capture:
        console.print(drawn([TextEvaluation.model_validate(one) for one in (BASE, FIRST)], 1, [wins]))
    lines = [" ".join(line.split()) for line in capture.get().splitlines()]
    assert lines[3] == "the winner against the base: by rouge it is better on 2 prompts"
    assert lines[5].startswith("prompt 1:")


def test_both_clients_read_all_pages(served: Served) -> None:
    pages = (200, {}, body(data=[BASE, FIRST], next_cursor="c1")), (200, {}, body(data=[BROKEN], next_cursor=None))
    script = Script(*pages)
    found = served(script).tasks.evaluations("task_1")
    assert [(one.index, one.error) for one in found] == [(None, None), (0, None), (1, "the device had no memory")]
    assert found[1].samples[0].scores == {"rouge": 0.75}
    assert "cursor=c1" in script.asked[1]

    async def go() -> list[TextEvaluation]:
        async with AsyncClient(served(Script(*pages)).api_url, "mk_1") as client:
            return list(await client.tasks.evaluations("task_1"))

    assert asyncio.run(go()) == list(found)


@pytest.mark.parametrize(("status", "words"), [("succeeded", "ask for 'evaluation' in the spec"), ("running", "as jobs end")])
def test_a_task_without_evaluations_says_how_to_get_some(served: Served, monkeypatch, status: str, words: str) -> None:
    script = Script((200, {}, body(**TASK | {"status": status})), (200, {}, body(data=[], next_cursor=None)))
    monkeypatch.setenv("MOTET_API_URL", served(script).api_url)
    monkeypatch.setenv("MOTET_API_KEY", "mk_1")
    done = CliRunner().invoke(app, ["evaluations", "task_1"])
    assert done.exit_code == 0, done.output
    assert words in " ".join(done.output.split())
