"""What an executor did for a placement and when, for the trace that its service exports."""

from typing import Annotated

from pydantic import Field, FiniteFloat

from contract.strict import Message

MOST_SPANS = 64  # of a report


class PhaseSpan(Message):
    """One phase that is over. began, ended: seconds of the Unix epoch, on the worker's clock. job: its index, where the phase
    is of one job. counts: numbers alone, so that nothing of a tenant's data gets into a trace."""

    name: Annotated[str, Field(max_length=64)]
    began: FiniteFloat
    ended: FiniteFloat
    job: int | None = None
    counts: Annotated[dict[str, FiniteFloat], Field(max_length=16)] = Field(default={})
