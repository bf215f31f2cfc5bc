"""What a command says: in a pipe ever more rarely while nothing happens, on a terminal in a picture that leaves nothing."""

import io
import threading
from collections.abc import Sequence

import pytest
from motet.display import console_output as module
from motet.display.columns import Column, Columns
from motet.display.console_output import ConsoleOutput, SafeConsole
from rich.console import Console
from rich.text import Text

PATIENCE = 120.0  # seconds after which a test gives up


@pytest.fixture
def page() -> io.StringIO:
    return io.StringIO()


def test_a_pipe_is_told_ever_more_rarely_until_something_happens(page: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    enough = threading.Event()

    class Spoke(threading.Event):
        """The output's own event, with a clock that stands still: it notes how long each silence would be."""

        def wait(self, timeout: float | None = None) -> bool:
            if timeout is None:
                return super().wait()
            waits.append(timeout)
            if len(waits) == 7:
                enough.set()
                return super().wait(PATIENCE)
            return len(waits) == 6

    monkeypatch.setattr(module.threading, "Event", Spoke)
    output = ConsoleOutput(Console(file=page, width=140))
    monkeypatch.undo()
    with output.doing("waiting"):
        assert enough.wait(PATIENCE)
    assert waits == [4, 8, 16, 32, 60, 60, 4]
    assert page.getvalue().count("... waiting") == 5


def test_a_line_in_a_pipe_is_not_broken(page: io.StringIO) -> None:
    ConsoleOutput(Console(file=page, width=40)).say("task_" + "x" * 60 + " and more words behind it")
    assert page.getvalue().count("\n") == 1


def test_what_is_said_beside_a_picture_is_drawn_in_it_and_printed_once_it_is_gone(page: io.StringIO) -> None:
    output = ConsoleOutput(Console(file=page, width=60, height=20, force_terminal=True, legacy_windows=False))
    seen = threading.Event()

    def picture(news: Sequence[str]) -> Text:
        if news:
            seen.set()
        return Text("the picture")

    def interrupted() -> None:
        with output.showing(picture):
            output.say("job 0 completed")
            assert seen.wait(PATIENCE)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    written = page.getvalue()
    alternate, left = written.index("\x1b[?1049h"), written.index("\x1b[?1049l")
    assert "the picture" in written[alternate:left]
    assert "the picture" not in written[left:]
    assert "job 0 completed" in written[left:]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_is_not_driven_by_a_name(page: io.StringIO, terminal: bool) -> None:
    output = ConsoleOutput(SafeConsole(file=page, width=80, force_terminal=terminal))
    name = "mine\x1b]0;title\x1b[2J"
    with output.doing(name):
        output.say(name)
        output.say(Columns((Column("task"), Column("name", folds=True)), [("task_1", name)]))
    assert ("\x1b]0;" in page.getvalue() or "\x1b[2J" in page.getvalue()) is not terminal
    assert page.getvalue().count("mine") >= 2
