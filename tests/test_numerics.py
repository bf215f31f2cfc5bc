"""docs/NUMERICS.md names a test for what it says is equal: every file and test that it names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_test_it_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs" / "NUMERICS.md").read_text())
    assert len(named) > 15
    for path, test in named:
        assert (ROOT / path).is_file(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text(), f"{path}::{test}"
