"""A program's entry point, imported with the garbage collector paused."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.processes import entry_point

PROGRAM = """
import gc
PAUSED = not gc.isenabled()
def main(word): return word, PAUSED
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "program_of_a_test.py"
    sys.modules.pop("program_of_a_test", None)
    gc.unfreeze()


def test_it_is_imported_with_the_collector_paused_and_frozen_then(program):
    program.write_text(PROGRAM)
    assert entry_point.load("program_of_a_test:main")("ran") == ("ran", True)
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_after_a_failed_import_the_collector_runs_as_well(program):
    program.write_text("import a_module_that_is_nowhere")
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_nowhere"):
        entry_point.load("program_of_a_test:main")
    assert gc.isenabled()
