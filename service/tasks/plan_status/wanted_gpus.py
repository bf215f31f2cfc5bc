"""The GPUs of one node that queued tasks wait for, in SQL: a base that is too large for those asked for needs more."""

from sqlalchemy import ColumnElement, Integer, cast, func, literal_column

from service.tasks.models import Task

# as the plan said that its owner was last notified of; before the first one, as its spec asks for
WANTED_GPUS: ColumnElement[int] = func.coalesce(cast(Task.waiting.op("->>")(literal_column("'gpus'")), Integer), Task.gpus)
