"""The `motet` command line, and a small client that scripts can import: `from motet import Client`, or `AsyncClient`."""

from motet.api.async_client import AsyncClient
from motet.api.client import Client
from motet.api.errors import ApiError, DownloadDamaged, FieldProblem, MotetError, NoCredentials, TaskNotDone, Unreachable

__all__ = [
    "ApiError",
    "AsyncClient",
    "Client",
    "DownloadDamaged",
    "FieldProblem",
    "MotetError",
    "NoCredentials",
    "TaskNotDone",
    "Unreachable",
]
