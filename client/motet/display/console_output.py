"""Progress messages: a spinner with a clock or a whole live picture on a terminal, elsewhere plain lines. Knows no messages.

A live picture has the terminal's alternate screen to itself, so resizing it and Ctrl-C leave nothing of it behind; what is said
meanwhile is drawn in it, and printed for good once it is gone.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

SILENCE = 4.0  # longest silence, in seconds, after something happened when output is plain lines;
LONGEST_SILENCE = 60.0  # it doubles up to this while nothing happens
_FRAMES_A_SECOND = 8

_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")  # but for tabs and line ends

Words = Callable[[], str]
Picture = Callable[[Sequence[str]], RenderableType]


def without_controls(text: str) -> str:
    """The text without characters by which it could drive a terminal: names, rows and answers are others' words."""
    return _CONTROLS.sub("\ufffd", text)


class SafeConsole(Console):
    """A console whose terminal is driven by rich's own styles alone, whatever is printed. A pipe gets all as it is."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if self.is_terminal and segment.control is None:
                yield Segment(without_controls(segment.text), segment.style)
            else:
                yield segment


class ConsoleOutput:
    """All output of one command. `lively`: the console is a terminal that can redraw."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.lively = console.is_terminal and not console.is_dumb_terminal
        self._began = time.monotonic()
        self._spoke = threading.Event()
        self._held: list[str] | None = None  # what was said beside a live picture

    @property
    def seconds(self) -> float:
        """Seconds since the command began."""
        return time.monotonic() - self._began

    def say(self, what: RenderableType = "") -> None:
        """Print permanently, above a spinner, or after the live picture. Plain text is printed verbatim."""
        self._spoke.set()
        if self._held is not None and isinstance(what, str):
            self._held.append(what)
        else:
            whole = isinstance(what, str) and not self.console.is_terminal  # programs that read lines get each line whole
            self.console.print(Text(what) if isinstance(what, str) else what, soft_wrap=whole)

    @contextmanager
    def doing(self, words: Words | str) -> Iterator[None]:
        """Inside the context, show `words` as the current activity."""
        tell = words if callable(words) else lambda: words
        if not self.lively:
            with self._lines(tell):
                yield
            return
        began, turning = time.monotonic(), Spinner("dots", style="cyan")

        def line() -> RenderableType:
            return _spinner_line(turning, tell(), time.monotonic() - began)

        with Live(
            get_renderable=line,
            console=self.console,
            refresh_per_second=_FRAMES_A_SECOND,
            transient=True,
            redirect_stderr=False,
        ):
            yield

    @contextmanager
    def showing(self, picture: Picture) -> Iterator[None]:
        """Inside the context, draw `picture` on the whole terminal, with what has been said since; then print the latter."""
        held = self._held = []
        try:
            with Live(
                get_renderable=lambda: picture(held),
                console=self.console,
                refresh_per_second=_FRAMES_A_SECOND,
                screen=True,
                redirect_stdout=False,
                redirect_stderr=False,
            ):
                yield
        finally:
            self._held = None
            for said in held:
                self.say(said)

    @contextmanager
    def _lines(self, tell: Words) -> Iterator[None]:
        done = threading.Event()
        began = time.monotonic()

        def keep_talking() -> None:
            silence = SILENCE
            while not done.is_set():
                self._spoke.clear()
                if self._spoke.wait(silence):
                    silence = SILENCE
                elif not done.is_set():
                    self.console.print(Text(f"  ... {tell()} ({time.monotonic() - began:.0f} s)"), soft_wrap=True)
                    silence = min(2 * silence, LONGEST_SILENCE)

        talker = threading.Thread(target=keep_talking, daemon=True)
        talker.start()
        try:
            yield
        finally:
            done.set()
            self._spoke.set()
            talker.join()


def _spinner_line(turning: Spinner, words: str, seconds: float) -> RenderableType:
    line = Table.grid(padding=(0, 1))
    line.add_row(turning, Text(words), Text(f"{seconds:.0f} s", style="dim"))
    return line
