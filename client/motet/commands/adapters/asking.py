"""`motet ask`: what a base or an adapter answers. The answer alone is on standard output."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from motet.api.client import Client
from motet.api.errors import ApiError
from motet.api.resources import CompletionPart, Task
from motet.commands.common import Json, Output, resolve, winning_adapter
from motet.specs.spec_file import SpecError

_STDIN = "-"
_PLAIN_FORMATS = ("completion", "text")  # a preference file's format does not say whether its prompts are conversations
_WAITS = "waiting for an executor of the base"


def ask(
    model: Annotated[
        str,
        typer.Argument(
            metavar="TASK_OR_MODEL", help="A task (its winner), `last`, an adapter, a job (its newest checkpoint), or a base."
        ),
    ],
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What a user says; `-` reads it from standard input.")],
    plain: Annotated[
        bool | None,
        typer.Option(
            "--plain/--chat",
            help="Continue the prompt as it stands, or put it into the chat template; left out, as the task's rows are.",
            show_default=False,
        ),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of the answer.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="0: the likeliest token each time.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="A text that ends the answer; up to four.")] = None,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Print the answer as it comes.")] = True,
    json: Json = False,
) -> None:
    """Ask an adapter or a base; the answer streams. With --json it comes whole, with what it used. For trying, not serving."""
    output, asked = Output(json, aside=True), _read(prompt)
    with Client() as client:
        task, name = _model(client, model, output)
        if plain is None:
            plain = _plain_rows(client, task, name, output)
        limits: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed, "stop": stop or ()}
        if stream and not json:
            _print(client.completions.stream(name, asked, plain=plain, **limits), output)
            return
        with output.console_output.doing(_WAITS):
            answer = client.completions.create(name, asked, plain=plain, **limits)
    if json:
        output.give(answer, lambda: "")
    else:
        output.write(f"{answer.text}\n")
        _tell_cut(answer.finish_reason, output)


def _read(prompt: str) -> str:
    """The prompt, from standard input where it says so. Raises SpecError where it is empty."""
    if prompt == _STDIN:
        try:
            prompt = sys.stdin.read().rstrip("\n")
        except UnicodeDecodeError:
            raise SpecError("standard input is not UTF-8 text") from None
    if not prompt:
        raise SpecError("the prompt is empty; write it behind the task or model, or `-` to read it from standard input")
    return prompt


def _model(client: Client, name: str, output: Output) -> tuple[Task | None, str]:
    """The task, if it is one, and what the API calls the model: of a task, its winner's adapter. Raises MotetError where there
    is none yet."""
    if name != "last" and not name.startswith("task_"):
        return None, name
    task = client.tasks.get(resolve(client, name))
    return task, winning_adapter(task, output)


def _plain_rows(client: Client, task: Task | None, name: str, output: Output) -> bool:
    """Whether the task, or the one that trained the adapter, had rows of texts without a chat template; tells the user so. No
    where that is unknown: the file is gone, or the key may not read it."""
    try:
        if task is None and name.startswith("adapter_"):
            task_id = client.adapters.get(name).task_id
            task = client.tasks.get(task_id) if task_id is not None else None
        file_id = task.spec.get("dataset", {}).get("file_id") if task is not None else None
        format = client.files.get(file_id).format if file_id is not None else None
    except ApiError:
        return False
    if format == "preference":
        output.say("asks by the chat template; if the task's pairs are prompt, chosen and rejected, --plain asks as they stand")
    if format not in _PLAIN_FORMATS:
        return False
    output.say(f"the task's rows are {format} rows, so the prompt is continued as it stands; --chat applies the chat template")
    return True


def _print(parts: Iterator[CompletionPart], output: Output) -> None:
    with output.console_output.doing(_WAITS):
        first = next(parts, None)
    reason, part = None, first
    while part is not None:
        output.write(part.text)
        reason, part = part.finish_reason or reason, next(parts, None)
    output.write("\n")
    _tell_cut(reason, output)


def _tell_cut(reason: str | None, output: Output) -> None:
    if reason == "length":
        output.say("the answer was cut at the most tokens it might have; --max-tokens changes that")
