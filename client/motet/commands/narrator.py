"""Progress messages: a spinner with a clock on a terminal, elsewhere a line every 4 seconds. Knows no messages."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

SILENCE = 4.0  # longest silence, in seconds, when output is plain lines
_FRAMES_A_SECOND = 8

Words = Callable[[], str]


class Narrator:
    """All output of one command. `lively`: the console is a terminal that can redraw."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.lively = console.is_terminal and not console.is_dumb_terminal
        self._began = time.monotonic()
        self._spoke = threading.Event()

    @property
    def seconds(self) -> float:
        """Seconds since the command began."""
        return time.monotonic() - self._began

    def say(self, what: RenderableType = "") -> None:
        """Print permanently, above any live display. Plain text is printed verbatim."""
        self._spoke.set()
        self.console.print(Text(what) if isinstance(what, str) else what)

    @contextmanager
    def doing(self, words: Words | str) -> Iterator[None]:
        """Inside the context, show `words` as the current activity."""
        tell = words if callable(words) else lambda: words
        if self.lively:
            began, turning = time.monotonic(), Spinner("dots", style="cyan")
            with self.showing(lambda: _spinner_line(turning, tell(), time.monotonic() - began)):
                yield
        else:
            with self._lines(tell):
                yield

    @contextmanager
    def showing(self, picture: Callable[[], RenderableType]) -> Iterator[None]:
        """Inside the context, draw `picture` at the bottom of the terminal; on exit it is removed."""
        with Live(
            get_renderable=picture,
            console=self.console,
            refresh_per_second=_FRAMES_A_SECOND,
            transient=True,
            redirect_stderr=False,
        ):
            yield

    @contextmanager
    def _lines(self, tell: Words) -> Iterator[None]:
        done = threading.Event()
        began = time.monotonic()

        def keep_talking() -> None:
            while not done.is_set():
                self._spoke.clear()
                if not self._spoke.wait(SILENCE) and not done.is_set():
                    self.console.print(Text(f"  ... {tell()} ({time.monotonic() - began:.0f} s)"), soft_wrap=True)

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
