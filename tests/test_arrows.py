"""The arrows between packages: who may import whom, read from the source. Also: imports stand at the top of a file.

grouped_lora <- worker -> contract <- service, motet (client) -> contract. Only deploy, tests, benchmarks and examples see all.
"""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "contract": ROOT / "contract",
    "service": ROOT / "service",
    "worker": ROOT / "worker",
    "grouped_lora": ROOT / "kernels" / "grouped_lora",
    "motet": ROOT / "client" / "motet",
    "deploy": ROOT / "deploy",
    "migrations": ROOT / "migrations",
}
OURS = {*PACKAGES, "tests", "benchmarks", "examples"}
ARROWS = {
    "contract": set(),
    "service": {"contract", "migrations"},
    "worker": {"contract", "grouped_lora"},
    "grouped_lora": set(),
    "motet": {"contract"},
    "deploy": set(PACKAGES),
    "migrations": {"contract", "service"},
}
TENSORS = {"torch", "triton", "transformers", "peft", "safetensors", "accelerate", "bitsandbytes"}
STORES = {"sqlalchemy", "psycopg", "alembic", "rq", "fastapi"}
NEVER = {"service": TENSORS, "worker": STORES}
# third-party packages of those that live on few
LIVES_ON = {
    "contract": {"pydantic", "pydantic_core"},  # the latter is where pydantic keeps its errors
    "grouped_lora": {"torch", "triton", "numpy"},  # numpy fills its work tables on the host
    "motet": {"httpx", "typer", "rich", "yaml", "pydantic"},
}
LAYERED = ("contract", "service", "worker", "grouped_lora", "motet", "deploy")
# modules that each room may have one of
ROLES = {"__init__.py", "__main__.py", "actions.py", "models.py", "resource.py", "routes.py", "errors.py", "settings.py"}
ROLES |= {
    f"{resource}.py"
    for resource in (
        *("account", "adapters", "batches", "completions", "files", "fleet", "hub_pushes", "members", "merged_models"),
        *("tasks", "tracking_servers"),
    )
}  # operations, schemas, commands
MOST_LINES, MOST_MODULES = 300, 15  # per module and per folder
BY_NAME = {"__import__", "import_module", "importlib.import_module"}


def sources(package: str) -> list[Path]:
    return sorted(PACKAGES[package].rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import hides where it goes"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def within(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def third_party(name: str) -> bool:
    return name.partition(".")[0] not in sys.stdlib_module_names | OURS


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_along_its_arrows(package: str) -> None:
    assert sources(package), f"{package} has no source: is it at {PACKAGES[package]}?"
    forbidden = OURS - ARROWS[package] - {package} | NEVER.get(package, set())
    found = [
        f"{place(path, line)} imports {name}"
        for path in sources(package)
        for line, name in imports(path)
        if within(name, forbidden)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", LIVES_ON)
def test_a_small_package_lives_on_few_others(package: str) -> None:
    found = [
        f"{place(path, line)} imports {name}"
        for path in sources(package)
        for line, name in imports(path)
        if third_party(name) and not within(name, LIVES_ON[package])
    ]
    assert not found, "\n".join(found)


@cache
def layers() -> list[list[tuple[str, ...]]]:
    """The drawing in docs/ARCHITECTURE.md: layers from the top, each of units, each of the patterns of its modules."""
    (drawn,) = re.findall(r"^```layers\n(.*?)^```$", (ROOT / "docs" / "ARCHITECTURE.md").read_text(), re.M | re.S)
    return [[tuple(unit.split(", ")) for unit in line.split(" | ")] for line in drawn.splitlines() if line]


def unit_of(file: str) -> tuple[int, int]:
    """The layer and the unit of a module: an exact name wins over a pattern of names, and that over the longest folder."""
    found = [
        ((pattern == file, pattern.endswith(".py"), len(pattern)), (level, column))
        for level, units in enumerate(layers())
        for column, unit in enumerate(units)
        for pattern in unit
        if fnmatchcase(file, pattern + "*" * pattern.endswith("/"))
        and (pattern.endswith("/") or file.count("/") == pattern.count("/"))
    ]
    assert found, f"{file} is in no layer of docs/ARCHITECTURE.md"
    return max(found)[1]


def modules() -> dict[str, Path]:
    """All product modules by dotted name."""
    return {
        ".".join((package, *path.relative_to(PACKAGES[package]).with_suffix("").parts)).removesuffix(".__init__"): path
        for package in LAYERED
        for path in sources(package)
    }


def drawn_as(path: Path) -> str:
    """The module's file as the drawing names it."""
    package = next(package for package in LAYERED if path.is_relative_to(PACKAGES[package]))
    return f"{package}/{path.relative_to(PACKAGES[package])}"


def test_modules_import_their_own_unit_and_lower_layers_alone() -> None:
    known = modules()
    units = {name: unit_of(drawn_as(path)) for name, path in known.items()}
    found = set()
    for name, path in known.items():
        for _, imported in imports(path):
            target = imported if imported in known else imported.rpartition(".")[0]
            if target.partition(".")[0] != name.partition(".")[0] or target not in known or units[target] == units[name]:
                continue
            if units[target][0] <= units[name][0]:
                found.add(f"{name} imports {target}")
    assert not found, f"not in a layer below: {sorted(found)}"


def test_every_pattern_of_the_drawing_is_some_modules() -> None:
    used = {unit_of(drawn_as(path)) for path in modules().values()}
    idle = [unit for level, units in enumerate(layers()) for column, unit in enumerate(units) if (level, column) not in used]
    assert not idle


@pytest.mark.parametrize(("lower", "upper"), [("tasks", "fleet"), ("tasks", "scheduler"), ("fleet", "scheduler")])
def test_tasks_fleet_and_scheduler_import_one_way(lower: str, upper: str) -> None:
    """Rows aside, which lie below all three."""
    found = [
        f"{place(path, line)} imports {name}"
        for path in sorted((ROOT / "service" / lower).rglob("*.py"))
        for line, name in imports(path)
        if within(name, {f"service.{upper}"}) and not within(name, {f"service.{upper}.models"})
    ]
    assert not found, "\n".join(found)


def test_no_two_product_modules_have_one_name() -> None:
    named: dict[str, list[str]] = {}
    for path in modules().values():
        named.setdefault(path.name, []).append(drawn_as(path))
    twice = [files for name, files in named.items() if len(files) > 1 and name not in ROLES]
    assert not twice, f"{twice}: rename one, or list the role in ROLES"


@pytest.mark.parametrize("package", LAYERED)
def test_no_two_classes_of_a_package_have_one_name(package: str) -> None:
    named: dict[str, list[str]] = {}
    for path in sources(package):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named.setdefault(node.name, []).append(place(path, node.lineno))
    assert not {name: places for name, places in named.items() if len(places) > 1}


def test_product_modules_are_short() -> None:
    long = {drawn_as(path) for path in modules().values() if len(path.read_text().splitlines()) > MOST_LINES}
    assert not long


def test_folders_hold_few_modules() -> None:
    folders = Counter(path.parent.relative_to(ROOT) for path in modules().values() if path.name != "__init__.py")
    assert not {str(folder): number for folder, number in folders.items() if number > MOST_MODULES}


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_stand_at_the_top(package: str) -> None:
    inner = [
        place(path, node.lineno)
        for path in sources(package)
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME)
    ]
    assert not inner, "imports inside functions: " + ", ".join(inner)


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("service.app", TENSORS | {"ortools"}),
        ("service.background.reconciler", TENSORS | {"ortools"}),
        ("motet.cli", TENSORS | STORES),
        ("contract.messages.report_messages", TENSORS | STORES),
        ("worker.node.daemon", TENSORS),
        ("worker.executor_main", STORES | {"peft", "jsonschema", "sacrebleu", "optuna", "transformers.modeling_utils"}),
    ],
)
def test_importing_it_loads_no_stranger(module: str, never: set[str]) -> None:
    """The arrows hold through third parties too; and what starts often loads nothing that takes seconds for nothing."""
    program = f"import sys, {module}; print(*sorted(sys.modules.keys() & {never!r}))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not ran.stdout.split()
