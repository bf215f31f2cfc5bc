"""`motet demo`: a real search on real data, end to end, with an independent check of its result. Leaves nothing running.

On a terminal the dashboard stays up at the end until Ctrl-C; elsewhere, such as in CI, the stack stops by itself.

Starts the stack (or attaches), submits examples/spec.yaml, follows it, downloads the winner, and has PEFT alone recompute its
loss in another process. Fails unless both losses agree and the winner beats the base. `--running` starts nothing: it takes the
Motet whose keys are in the state folder, such as that of docker-compose.yml.
"""

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from contract.processes.local_stack import state_folder
from contract.states import JobStatus
from motet.api.client import Client
from motet.api.errors import MotetError
from motet.api.resources import Task, Winner
from motet.commands.invocation import command
from motet.display.console_output import ConsoleOutput
from motet.display.follow_task import outcome, watch
from motet.display.tables.task_tables import jobs_table
from motet.display.task_state import TaskState
from motet.local import example_files
from motet.local.stack_process import Ready, Stack
from motet.local.up import start, stop
from motet.specs.spec_file import SpecFile, read
from motet.specs.upload import submit

TOLERANCE = 1e-3  # nats; between the reported validation loss and PEFT's
_SHOWN = 3  # held-out questions that are answered before everybody's eyes,
_WIDEST = 100  # characters shown of what the base says
_ASKED = 8  # of those whose facts are counted


class DemoFailed(MotetError):
    """The demo ran, but its result is wrong."""


@dataclass(frozen=True)
class SecondOpinion:
    """PEFT's results, without and with the adapter: the loss over the held-out rows, answers to some of their questions, and
    the part of the questions' facts that the answers say."""

    questions: list[str]
    base_loss: float
    adapter_loss: float
    base_answers: list[str]
    adapter_answers: list[str]
    base_facts_said: float
    adapter_facts_said: float


def demo(output: ConsoleOutput, out: Path | None, arguments: list[str]) -> None:
    """Run the demo. Raises DemoFailed or another MotetError; a stack that was started here is stopped in any case."""
    _introduce(output)
    with Stack(arguments) as stack:
        ready = start(stack, output)
        output.say(
            f"{'attached to the stack' if ready.attached else 'the stack is up'} at {ready.api_url} ({output.seconds:.0f} s)"
        )
        if ready.moved is not None:
            output.say(Text(ready.moved, style="yellow"))
        task_id = _whole(output, out, ready)
        if ready.attached:
            _say_where(output, ready, task_id)
        else:
            _show(stack, output, ready, task_id)


def demo_of_running(output: ConsoleOutput, out: Path | None) -> None:
    """Run the demo on the Motet whose address and keys are in the state folder, and start nothing. Raises as `demo` does."""
    _introduce(output)
    with Client(service="local") as client:
        client.ready()
        ready = Ready(client.api_url, state_folder(), attached=True)
    output.say(f"it runs at {ready.api_url}")
    _say_where(output, ready, _whole(output, out, ready))


def _introduce(output: ConsoleOutput) -> None:
    output.say(
        Text("Motet's demo: sixteen LoRA configurations at once teach a small base to describe restaurants.", style="bold")
    )
    output.say("It takes about two minutes on two idle cores, and up to ten on slow or busy ones.")


def _whole(output: ConsoleOutput, out: Path | None, ready: Ready) -> str:
    """The task's id, once its result is checked."""
    spec = read(example_files.folder() / "spec.yaml")
    with Client(service="local") as client:
        task_id = _run(client, output, spec, out or ready.state_dir / "adapters", ready)
    output.say(f"\nThe whole demo took {output.seconds:.0f} s.")
    return task_id


def _link(client: Client, task_id: str) -> str:
    return f"{client.account.sign_in_link().url}?next=/tasks/{task_id}  (signs in once, within 15 minutes)"


def _say_where(output: ConsoleOutput, ready: Ready, task_id: str) -> None:
    """Say where the run can be seen."""
    page = f"{ready.api_url}/tasks/{task_id}"
    with Client(service="local") as client:
        output.say(f"See this run, its curves and its exits in the dashboard: {page}\n  a new link: {_link(client, task_id)}")


def _show(stack: Stack, output: ConsoleOutput, ready: Ready, task_id: str) -> None:
    """On a terminal, keep the dashboard up until Ctrl-C; elsewhere stop, and say how to see the run later."""
    if not output.lively:
        stop(stack, output)
        again = "make up" if Path("Makefile").is_file() else f"{command()} up"
        output.say(f"To see this run in the dashboard: {again} prints a link that signs in; then /tasks/{task_id}")
        return
    _say_where(output, ready, task_id)
    output.say("The dashboard stays up until Ctrl-C, which stops everything; `motet up` brings it back with all that is in it.")
    with suppress(KeyboardInterrupt):
        for event in stack.events():
            if event["event"] == "stopped":
                return
    stop(stack, output)


def _run(client: Client, output: ConsoleOutput, spec: SpecFile, folder: Path, ready: Ready) -> str:
    """The task's id, once its result is checked."""
    model = example_files.register_base(client)
    output.say(f"base model {model.name}: {model.parameters:,} parameters, {model.architecture}")
    task = submit(client, spec, output)
    output.say(f"watch it in a browser: {_link(client, task.id)}")
    try:
        view = watch(client, task.id, output)
    except KeyboardInterrupt:
        client.tasks.cancel(task.id)
        raise
    winner = _results(output, view, ready)
    adapter = client.adapters.download(winner.adapter_id, folder / winner.adapter_id)
    output.say(f"\nThe winner's adapter, ready for PEFT and vLLM: {adapter}")
    output.say(
        "PEFT alone, in another process, loads it on the plain base, recomputes the validation losses, and answers "
        f"{_ASKED} questions with it and without: up to three minutes on slow or busy cores"
    )
    with output.doing("PEFT loads the adapter, recomputes the losses and answers"):
        opinion = second_opinion(adapter, spec.files["validation_file_id"])
    _judge(output, view.task, winner, opinion)
    return task.id


def _results(output: ConsoleOutput, view: TaskState, ready: Ready) -> Winner:
    task = view.task
    ranked = sorted(view.jobs, key=view.best_first)
    output.say()
    output.say(jobs_table(view, ranked))
    output.say()
    if task.winner is None:
        log = ready.state_dir / "logs" / "worker.log"
        hint = f"; the worker's log is {log}" if log.exists() else "; the worker's log says more"
        raise DemoFailed(f"no adapter came out of it: {outcome(task)}{hint}")
    exited = [job for job in view.jobs if job.status == JobStatus.EXITED]
    saved = task.samples.saved_fraction or 0.0
    output.say(
        f"{len(view.jobs)} configurations, {len(exited)} of them stopped early: "
        f"{task.samples.trained:,} of {task.samples.full or 0:,} samples trained, {saved:.0%} saved"
    )
    output.say(Text(f"winner: job {task.winner.index} ({view.label(task.winner.config)})", style="bold green"))
    if task.selection is not None:
        output.say(task.selection.verdict)
    return task.winner


def second_opinion(adapter: Path, rows: Path) -> SecondOpinion:
    """Recompute the losses in a process that imports PEFT and transformers but no Motet code. Raises DemoFailed if it fails."""
    script = example_files.folder() / "use_adapter.py"
    words = [str(adapter), "--rows", str(rows), "--show", str(_ASKED), "--json"]
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        hint = '; PEFT comes with `pip install "motet[dev]"`' if "No module named" in said[0] else ""
        raise DemoFailed(f"{script.name} could not load the adapter with PEFT: {said[0]}{hint}")
    return SecondOpinion(**json.loads(done.stdout.splitlines()[-1]))


def _judge(output: ConsoleOutput, task: Task, winner: Winner, opinion: SecondOpinion) -> None:
    output.say(f"  {'validation loss':24}{'reported':>10}{'by PEFT':>10}")
    for name, reported, found in (
        ("the base alone", task.base_val_loss, opinion.base_loss),
        ("with the adapter", winner.val_loss, opinion.adapter_loss),
    ):
        output.say(f"  {name:24}{reported if reported is not None else float('nan'):>10.4f}{found:>10.4f}")
    facts = f"{opinion.base_facts_said:>10.0%}{opinion.adapter_facts_said:>10.0%}"
    output.say(f"\n  {'of ' + str(_ASKED) + ' restaurants never seen':28}{'the base':>10}{'adapter':>10}")
    output.say(f"  {'facts said, word for word':28}{facts}")
    shown = zip(opinion.questions[:_SHOWN], opinion.base_answers, opinion.adapter_answers, strict=False)
    for question, base, adapter in shown:
        output.say(f"\n{', '.join(question.splitlines())}")
        output.say(Text(f"  the base:     {' '.join(base.split())[:_WIDEST]}", style="dim"))
        output.say(Text(f"  the adapter:  {' '.join(adapter.split())}", style="green"))
    off = abs(winner.val_loss - opinion.adapter_loss)
    if off > TOLERANCE:
        raise DemoFailed(f"PEFT finds another validation loss for the winner: {off:.2g} away, {TOLERANCE:g} is allowed")
    if opinion.adapter_loss >= opinion.base_loss:
        raise DemoFailed("the winner does not beat the base")
