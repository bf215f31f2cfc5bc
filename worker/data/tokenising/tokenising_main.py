"""The process that tokenises files for an executor, one after another."""

import os
import signal
import sys
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from contract.rows.row_encoding import RowReader
from contract.task_spec import Objective
from worker.data.row_reader import fingerprint_of, load_tokenizer, reader_of
from worker.data.tokenising.file_tokeniser import DataError, Reading, tokenise
from worker.pipe_messages import take_stdout
from worker.stderr_logging import log_to_stderr

YIELDING = "--yielding"  # an argument: the process leaves the cores to whatever else wants them
_NICENESS = 10


class TokeniseOrder(BaseModel):
    """path: of the file; None: load the tokenizer alone. into: the folder of the stream. tokenizer: its folder. created_at: of
    the task, where the template writes the date. key: of the stream that is asked for. The others as of Reading."""

    model_config = ConfigDict(frozen=True)

    path: Path | None
    into: Path | None
    tokenizer: Path
    fingerprint: str
    objective: Objective
    max_seq_len: int
    created_at: datetime | None
    key: str


class Outcome(BaseModel):
    """Why there is no stream, if there is none. data: what is wrong with the rows; errno: of the system, with what it says."""

    data: str | None = None
    errno: int | None = None
    said: str = ""


def main() -> None:
    log_to_stderr()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: whoever started it ends it
    if YIELDING in sys.argv:
        os.nice(_NICENESS)
    reader_for = lru_cache(maxsize=1)(_reader)
    with take_stdout() as answer:
        for line in sys.stdin:
            order = TokeniseOrder.model_validate_json(line)
            outcome = _done(order, reader_for(order.tokenizer, order.fingerprint))
            answer.write(outcome.model_dump_json().encode() + b"\n")
            answer.flush()


def _reader(folder: Path, fingerprint: str) -> RowReader:
    tokenizer = load_tokenizer(folder)
    if (found := fingerprint_of(tokenizer)) != fingerprint:
        sys.exit(f"the tokenizer in {folder} is {found} now, and was {fingerprint} when the base was loaded")
    return reader_of(tokenizer)


def _done(order: TokeniseOrder, reader: RowReader) -> Outcome:
    if order.created_at is not None:
        reader = reader.at(order.created_at)
    reading = Reading(reader, order.objective, order.max_seq_len, order.fingerprint, order.created_at)
    if reading.key != order.key:
        sys.exit("the code that would make the stream is another than the one that asks for it")
    if order.path is None or order.into is None:
        return Outcome()
    try:
        tokenise(order.path, reading, order.into, lambda: None)
    except DataError as error:
        return Outcome(data=str(error))
    except OSError as error:
        if error.errno is None:
            raise
        return Outcome(errno=error.errno, said=error.strerror or "")
    return Outcome()
