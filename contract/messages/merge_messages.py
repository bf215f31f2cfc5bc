"""What a node reports of a merge that it was given."""

from typing import Annotated

from pydantic import Field

from contract.messages.adapter_manifest import AdapterFile
from contract.strict import Message


class MergeReport(Message):
    """`files`: that storage holds since the last report. With `done` there are no more; with `error` there will be none, and
    another node would fail in the same way."""

    files: Annotated[list[AdapterFile], Field(max_length=1000)] = Field(default=[])
    done: bool = False
    error: Annotated[str, Field(max_length=2000)] | None = None
