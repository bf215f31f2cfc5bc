"""Names of things at this face: tuned models. Pure."""

from typing import Annotated

from pydantic import Field

from contract.strict import STORABLE

# a tuned model's name holds the names of its base and its task, and its adapter's id
ModelName = Annotated[str, Field(min_length=1, max_length=400), STORABLE]


def tuned(base: str, name: str | None, adapter_id: str) -> str:
    """A fine-tuned model's name, which ends in the adapter's id."""
    return f"ft:{base}:{name or ''}:{adapter_id}"
