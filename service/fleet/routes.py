"""The internal API: what the worker daemons and their executors call. Not part of the public API, and not in its schema."""

from fastapi import APIRouter

router = APIRouter(prefix="/internal/v1", include_in_schema=False)
