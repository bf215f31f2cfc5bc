"""Cache inventory of tenants' files: a node lists what it caches, and the service answers what to erase."""

from typing import Annotated

from pydantic import Field

from contract.strict import Message, Sha256


class CachedFile(Message):
    """A tenant's file of which a node keeps anything: the file itself, its rows as tokens, numbers computed from them."""

    tenant_id: Annotated[str, Field(max_length=64)]  # empty: the service that placed its task did not name one
    sha256: Sha256


class CachedFiles(Message):
    """In the request what the node keeps, in the answer what of it is to be erased."""

    files: Annotated[list[CachedFile], Field(max_length=1000)]
