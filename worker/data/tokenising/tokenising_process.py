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
        created_at=reading.created_at,
    )
    with subprocess.Popen(
        [*dying_with_parent(), sys.executable, "-m", "worker.data.tokenising"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=without_secrets(os.environ) | _ENVIRONMENT,
    ) as child:
        try:
            said = _answer(child, order.model_dump_json(), on_progress)
        finally:
            child.kill()  # where it has not ended
    try:
        outcome = Outcome.model_validate_json(said)
    except ValidationError:
        log.warning(
            "rows could not be tokenised in a process of their own (exit code %s): they are read in this one, which slows down "
            "the steps beside them",
            child.returncode,
        )
        return False
    if outcome.data is not None:
        raise DataError(outcome.data)
    if outcome.errno is not None:
        raise OSError(outcome.errno, outcome.said)
    return True


def _answer(child: subprocess.Popen[bytes], order: str, on_progress: Tick) -> bytes:
    """What the child prints until it ends."""
    told: bytes | None = order.encode()
    while True:
        on_progress()
        with suppress(subprocess.TimeoutExpired):
            return child.communicate(told, _CHECK_SECONDS)[0]
        told = None
