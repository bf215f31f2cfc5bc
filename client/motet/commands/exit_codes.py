"""What a command's exit says to the program that ran it, and which errors lead to which."""

from enum import IntEnum

from motet.api.errors import ApiError, BadId, MotetError, NoCredentials, NotMotet, Unreachable
from motet.specs.data_checks import DataError
from motet.specs.spec_file import SpecError


class ExitCode(IntEnum):
    DONE = 0
    FAILED = 1  # a refusal, a failed task, something wrong that `doctor` found
    USAGE = 2  # a mistake in the arguments, in a spec or in its files, found before anything was sent
    NO_SERVICE = 3  # nothing answers, or no key that the service accepts
    INTERRUPTED = 130


TEXT = (
    "Exit codes: 0 done; 1 it did not work out; 2 a mistake in what was typed, in a spec or in its files; "
    "3 no service to talk to, or a key that it refuses; 130 interrupted."
)


def of(error: MotetError) -> ExitCode:
    if isinstance(error, SpecError | DataError | BadId):
        return ExitCode.USAGE
    if isinstance(error, Unreachable | NoCredentials | NotMotet) or (isinstance(error, ApiError) and error.status == 401):
        return ExitCode.NO_SERVICE
    return ExitCode.FAILED
