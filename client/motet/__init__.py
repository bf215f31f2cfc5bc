"""The `motet` command line, and a small client that scripts can import: `from motet import Client`."""

from motet.client import Client
from motet.errors import ApiError, DownloadDamaged, FieldProblem, MotetError, NoCredentials, TaskNotDone, Unreachable

__all__ = ["ApiError", "Client", "DownloadDamaged", "FieldProblem", "MotetError", "NoCredentials", "TaskNotDone", "Unreachable"]
