"""What a command's exit says: mistakes found before anything was sent are 2, refusals 1, nobody to talk to 3."""

import pytest
from motet.api.errors import ApiError, MotetError, NoCredentials, Unreachable
from motet.cli import main
from motet.commands.exit_codes import ExitCode, of
from motet.specs.data_checks import DataError
from motet.specs.spec_file import SpecError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SpecError("line 3"), ExitCode.USAGE),
        (DataError("rows.jsonl: line 4 is not JSON"), ExitCode.USAGE),
        (ApiError(422, {}, about="rows.jsonl"), ExitCode.FAILED),
        (MotetError("it has no winner"), ExitCode.FAILED),
        (ApiError(401, {}), ExitCode.NO_SERVICE),
        (Unreachable("away"), ExitCode.NO_SERVICE),
        (NoCredentials("none"), ExitCode.NO_SERVICE),
    ],
)
def test_an_error_has_its_exit_code(error: MotetError, code: ExitCode) -> None:
    assert of(error) == code


@pytest.mark.parametrize(
    ("typed", "meant"), [("show", "`motet jobs` may be"), ("list", "`motet tasks` may be"), ("qqq", "--help")]
)
def test_a_command_of_another_tool_names_its_like(
    typed: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["motet", typed, "X"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitCode.USAGE
    said = " ".join(capsys.readouterr().err.split())
    assert meant in said
    assert f"No such command '{typed}'" in said
