"""Has a file tokenised in a process of its own. Python threads share an interpreter: rows that one of them reads slow down the
steps of a training loop beside it.
"""

import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from worker.child_environment import without_secrets
from worker.data.tokenising.file_tokeniser import DataError, Reading, Tick
from worker.data.tokenising.tokenising_main import Outcome, TokeniseOrder
from worker.parent_watchdog import dying_with_parent

log = logging.getLogger(__name__)

_CHECK_SECONDS = 0.2
_ENVIRONMENT = {"TRANSFORMERS_VERBOSITY": "error"}  # else it advises to install torch, which the child does without


def tokenise_apart(path: Path, reading: Reading, into: Path, on_progress: Tick) -> bool:
    """As file_tokeniser.tokenise, in a child. `on_progress` is called meanwhile, and may raise to end it. Whether that worked:
    a child that is killed, or finds another tokenizer, is logged. Raises DataError, and OSError."""
    assert reading.folder is not None, "the child loads the tokenizer"
    order = TokeniseOrder(
        path=path,
        into=into,
        tokenizer=reading.folder,
        fingerprint=reading.fingerprint,
        objective=reading.objective,
        max_seq_len=reading.max_seq_len,
        key=reading.key,
        created_at=reading.created_at,
    )
    try:
        child = _start(order)
    except OSError as error:
        _warn(str(error))
        return False
    with child:
        try:
            said = _answer(child, on_progress)
        finally:
            child.kill()  # where it has not ended
    try:
        outcome = Outcome.model_validate_json(said)
    except ValidationError:
        _warn(f"exit code {child.returncode}")
        return False
    if outcome.data is not None:
        raise DataError(outcome.data)
    if outcome.errno is not None:
        raise OSError(outcome.errno, outcome.said)
    return True


def _start(order: TokeniseOrder) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [*dying_with_parent(), sys.executable, "-m", "worker.data.tokenising"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=without_secrets(os.environ) | _ENVIRONMENT,
    )
    assert child.stdin is not None
    with suppress(BrokenPipeError), child.stdin as told:  # it has ended already, which its exit code says
        told.write(order.model_dump_json().encode())  # less than a pipe holds
    child.stdin = None
    return child


def _answer(child: subprocess.Popen[bytes], on_progress: Tick) -> bytes:
    """What the child prints until it ends."""
    while True:
        on_progress()
        with suppress(subprocess.TimeoutExpired):
            return child.communicate(timeout=_CHECK_SECONDS)[0]


def _warn(why: str) -> None:
    log.warning(
        "rows could not be tokenised in a process of their own (%s): they are read in this one, which slows down the steps "
        "beside them",
        why,
    )
