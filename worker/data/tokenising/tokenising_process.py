"""Has files tokenised in a process of their own. Python threads share an interpreter: rows that one of them reads slow down the
steps of a training loop beside it, and are read slowly there.
"""

import os
import select
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from worker import killed_process
from worker.child_environment import without_secrets
from worker.data.tokenising.file_tokeniser import DataError, Reading, Tick
from worker.data.tokenising.tokenising_main import YIELDING, Outcome, TokeniseOrder
from worker.parent_watchdog import dying_with_parent

_CHECK_SECONDS = 0.2
_EXIT_SECONDS = 5.0  # from when it has closed its pipe
_ENVIRONMENT = {"TRANSFORMERS_VERBOSITY": "error"}  # else it advises to install torch, which the child does without


class ProcessFailed(Exception):
    """No child can be started, or it ended without an answer: it was killed, or found another tokenizer and logged that."""


class TokenisingProcess:
    """A child that loads a tokenizer, and then tokenises one file after another until `end`."""

    def __init__(self, reading: Reading, yields: bool) -> None:
        """yields: the cores, to whatever else wants them. Raises ProcessFailed."""
        try:
            self._child = subprocess.Popen(
                [*dying_with_parent(), sys.executable, "-m", "worker.data.tokenising", *([YIELDING] if yields else [])],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=without_secrets(os.environ) | _ENVIRONMENT,
            )
        except OSError as error:
            raise ProcessFailed(str(error)) from None
        self.lives = True  # until `end`
        self._answers = False  # whether it has nothing left to answer
        self._ask(_order(reading))

    def ready(self, seconds: float = 0.0) -> bool:
        """Whether it has loaded the tokenizer, after at most so many seconds. Raises ProcessFailed."""
        if not self._answers and self._said_something(seconds):
            self._answer()
        return self._answers

    def tokenise(self, path: Path, reading: Reading, into: Path, on_progress: Tick) -> None:
        """As file_tokeniser.tokenise. `on_progress` is called meanwhile; what it raises ends the child. Raises DataError,
        OSError and ProcessFailed."""
        try:
            while not self.ready(_CHECK_SECONDS):
                on_progress()
            self._ask(_order(reading, path, into))
            on_progress()
            while not self._said_something(_CHECK_SECONDS):
                on_progress()
            outcome = self._answer()
        finally:
            if not self._answers:
                self.end()
        if outcome.data is not None:
            raise DataError(outcome.data)
        if outcome.errno is not None:
            raise OSError(outcome.errno, outcome.said)

    def end(self) -> None:
        if self.lives:
            self.lives = False
            killed_process.kill(self._child, "a process that tokenises", killed_process.SECONDS)
            for pipe in (self._child.stdin, self._child.stdout):
                assert pipe is not None
                pipe.close()

    def _ask(self, order: TokeniseOrder) -> None:
        assert self._child.stdin is not None
        self._answers = False
        with suppress(BrokenPipeError):  # it has ended, which its answer will say
            self._child.stdin.write(order.model_dump_json().encode() + b"\n")  # less than a pipe holds

    def _said_something(self, seconds: float) -> bool:
        assert self._child.stdout is not None
        poll = select.poll()  # select.select takes no descriptor from 1,024 on, and each adapter of a rank has some
        poll.register(self._child.stdout, select.POLLIN)
        return bool(poll.poll(1e3 * seconds))

    def _answer(self) -> Outcome:
        assert self._child.stdout is not None
        try:
            outcome = Outcome.model_validate_json(self._child.stdout.readline())
        except ValidationError:
            with suppress(subprocess.TimeoutExpired):  # else its exit code would be that of `end`
                self._child.wait(_EXIT_SECONDS)
            self.end()
            code = self._child.returncode
            raise ProcessFailed("it does not end" if code is None else f"exit code {code}") from None
        self._answers = True
        return outcome


def _order(reading: Reading, path: Path | None = None, into: Path | None = None) -> TokeniseOrder:
    assert reading.folder is not None, "the child loads the tokenizer"
    return TokeniseOrder(
        path=path,
        into=into,
        tokenizer=reading.folder,
        fingerprint=reading.fingerprint,
        objective=reading.objective,
        max_seq_len=reading.max_seq_len,
        key=reading.key,
        created_at=reading.created_at,
    )
