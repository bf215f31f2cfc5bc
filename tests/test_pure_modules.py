"""Pure modules, whose values come in and go out: they see no clock, no files, no network and no processes."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.test_arrows import ROOT, imports, modules, place, within

CLOCK = {"now", "utcnow", "today"}  # of datetime, whose values may be compared here
PURE_GENERATION = ("batch_scheduler", "page_allocator", "sequence", "stop_matcher", "text_decoder")
PURE_ESTIMATES = (
    "prediction_intervals",
    "sharing_estimate",
    "step_cost",
    "survival",
    "task_duration",
    "text_tokens",
    "throughput",
)
PURE = [
    "service/scheduler/core/*.py",
    "service/scheduler/core/*/*.py",
    *(f"service/scheduler/estimate/{name}.py" for name in PURE_ESTIMATES),
    "service/scheduler/explain/reason_codes.py",
    "service/fleet/node_health/node_faults.py",
    "worker/policy/*.py",
    "worker/policy/early_exit/*.py",
    *(f"worker/generate/{name}.py" for name in PURE_GENERATION),
    "worker/metrics/*.py",
]
PURE_SEES = {  # beside each other
    "contract",
    "jsonschema",
    "numpy",
    "optuna",
    "ortools",
    "pydantic",
    "rapidfuzz",
    "referencing",
    "regex",
    "sacrebleu",
}
PURE_STDLIB = {
    *("abc", "array", "bisect", "collections", "copy", "dataclasses", "enum", "decimal", "functools", "hashlib", "heapq"),
    *("datetime", "itertools", "json", "math", "numbers", "operator", "pkgutil", "random", "statistics", "struct", "types"),
    *("typing", "warnings"),
}
# what reaches beyond a program's values, or waits for what does
OUTSIDE = {
    *("asyncio", "fcntl", "http", "httpx", "io", "logging", "os", "pathlib", "queue", "redis", "shutil", "socket"),
    *("sqlalchemy", "subprocess", "tempfile", "threading", "time", "urllib.request"),
}


@pytest.mark.parametrize("pattern", PURE)
def test_pure_modules_see_no_clock_no_files_and_no_network(pattern: str) -> None:
    paths = sorted(ROOT.glob(pattern))
    assert paths, f"nothing matches {pattern}"
    pure = {path for each in PURE for path in ROOT.glob(each)}
    seen = PURE_SEES | PURE_STDLIB | {name for name, path in modules().items() if path in pure}
    impure = [f"{place(path, line)} imports {name}" for path in paths for line, name in imports(path) if not within(name, seen)]
    assert not impure, "\n".join(impure)
    assert not (asked := asking_the_clock(paths)), "\n".join(asked)


def test_modules_that_call_themselves_pure_reach_for_nothing_outside() -> None:
    """They may know rows and resources, as values."""
    said = {path: ast.get_docstring(ast.parse(path.read_text())) or "" for path in modules().values()}
    paths = [path for path, docstring in said.items() if re.search(r"\bPure\b", docstring)]
    assert len(paths) > 40
    found = [f"{place(path, line)} imports {name}" for path in paths for line, name in imports(path) if within(name, OUTSIDE)]
    assert not found, "\n".join(found)
    assert not (asked := asking_the_clock(paths)), "\n".join(asked)


def asking_the_clock(paths: Iterable[Path]) -> list[str]:
    return [
        f"{place(path, node.lineno)} asks the clock"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in CLOCK and ast.unparse(node.value) in {"datetime", "date"}
    ]
