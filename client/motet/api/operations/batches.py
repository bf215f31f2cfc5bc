"""Calls about batches: several tasks posted together, planned for one objective."""

from collections.abc import Mapping
from typing import Any

from contract.batch_spec import BatchSpec
from motet.api.resources import Batch, BatchEstimate
from motet.api.steps import Listing, Operation, ask, at, change, entries, get, make, one

Spec = BatchSpec | Mapping[str, Any]


def create(spec: Spec) -> Operation[Batch]:
    """Submit all tasks, or none. A mapping is checked by the service, whose ApiError names each wrong field of `tasks[i]`."""
    return one(Batch, make("/v1/batches", json=_body(spec)))


def estimate(spec: Spec) -> Operation[BatchEstimate]:
    """What the batch would take, and when its tasks would start and end, if it were posted now. Nothing is stored."""
    return one(BatchEstimate, ask("/v1/batches/estimate", _body(spec)))


def batch(batch_id: str) -> Operation[Batch]:
    """The batch as it is now."""
    return one(Batch, get(at("/v1/batches/{}", batch_id)))


def batches() -> Listing[Batch]:
    """The tenant's batches, newest first."""
    return entries(Batch, "/v1/batches")


def cancel(batch_id: str) -> Operation[Batch]:
    """Cancel every task that has not ended, all at once; committed adapters stay downloadable."""
    return one(Batch, change("POST", at("/v1/batches/{}/cancel", batch_id)))


def _body(spec: Spec) -> dict[str, Any]:
    return dict(spec) if isinstance(spec, Mapping) else spec.model_dump(mode="json", exclude_unset=True)
