"""Steps that fail apart: one that fails is logged and made again next time, and keeps no other from its turn."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger(__name__)

_FAULTS = SQLAlchemyError, OSError, ValueError, KeyError  # the last two: of a damaged stored row


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Log an error of this block, which is run again next time; what follows it continues."""
    try:
        yield
    except _FAULTS as error:
        log.error("%s failed and will be tried again: %s", what, error, exc_info=not isinstance(error, OSError))
