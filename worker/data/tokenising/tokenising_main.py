"""The process that tokenises one file. Yields to whatever else wants the cores."""

import os
import signal
import sys
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from contract.task_spec import Objective
from worker.data.row_reader import fingerprint_of, load_tokenizer, reader_of
from worker.data.tokenising.file_tokeniser import DataError, Reading, tokenise
from worker.pipe_messages import take_stdout
from worker.stderr_logging import log_to_stderr

_NICENESS = 10


class TokeniseOrder(BaseModel):
    """path: of the file. into: the folder of the stream. tokenizer: its folder. created_at: of the task, where the template
    writes the date. key: of the stream that is asked for. The others as of Reading."""

    model_config = ConfigDict(frozen=True)

    path: Path
    into: Path
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
    os.nice(_NICENESS)
    with take_stdout() as answer:
        order = TokeniseOrder.model_validate_json(sys.stdin.read())
        answer.write(_done(order).model_dump_json().encode())


def _done(order: TokeniseOrder) -> Outcome:
    tokenizer = load_tokenizer(order.tokenizer)
    if (found := fingerprint_of(tokenizer)) != order.fingerprint:
        sys.exit(f"the tokenizer in {order.tokenizer} is {found} now, and was {order.fingerprint} when the base was loaded")
    reader = reader_of(tokenizer)
    if order.created_at is not None:
        reader = reader.at(order.created_at)
    reading = Reading(reader, order.objective, order.max_seq_len, order.fingerprint, order.created_at)
    if reading.key != order.key:
        sys.exit("the code that would make the stream is another than the one that asks for it")
    try:
        tokenise(order.path, reading, order.into, lambda: None)
    except DataError as error:
        return Outcome(data=str(error))
    except OSError as error:
        if error.errno is None:
            raise
        return Outcome(errno=error.errno, said=error.strerror or "")
    return Outcome()
