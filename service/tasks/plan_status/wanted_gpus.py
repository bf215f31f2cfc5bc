"""The GPUs of one node that queued tasks wait for, in SQL: a base that is too large for those asked for needs more."""

from sqlalchemy import ColumnElement, Integer, case, cast, func, literal_column

from service.tasks.models import Task

# without parameters, by which two places of one statement would differ
_SAID = Task.waiting.op("->>")(literal_column("'gpus'"))
_NUMBER = _SAID.op("~")(literal_column("'^[0-9]{1,9}$'"))
# as the plan said that its owner was last notified of; before the first one, or where that is no number, as its spec asks for
WANTED_GPUS: ColumnElement[int] = func.coalesce(case((_NUMBER, cast(_SAID, Integer))), Task.gpus)
