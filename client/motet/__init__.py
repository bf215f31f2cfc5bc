"""The `motet` command line, and a small client that scripts can import: `from motet import Client`, or `AsyncClient`."""

from motet.api.async_client import AsyncClient
from motet.api.client import Client
from motet.api.errors import ApiError, DownloadDamaged, FieldProblem, MotetError, NoCredentials, TaskNotDone, Unreachable
from motet.api.operations.files import BucketAccess

__all__ = [
    "ApiError",
    "AsyncClient",
    "BucketAccess",
    "Client",
    "DownloadDamaged",
    "FieldProblem",
    "MotetError",
    "NoCredentials",
    "TaskNotDone",
    "Unreachable",
]
