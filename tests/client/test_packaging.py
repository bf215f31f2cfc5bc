"""The client as a package of its own: `motet` and the contract that it speaks, and nothing of the server."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's wheel, unpacked: what a site-packages folder would hold."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("client", "contract"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    command = [sys.executable, "-m", "pip", "wheel", str(folder / "client"), "--no-deps", "--no-build-isolation", "--quiet"]
    built = subprocess.run([*command, "--wheel-dir", str(folder)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    zipfile.ZipFile(wheel).extractall(site)
    return site


def run(site: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program that sees the unpacked wheel and this environment's third parties, and no other package of ours."""
    hide = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); "
        f"sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)]; "
        f"sys.path[:] = [p for p in sys.path if p not in {[str(ROOT), str(ROOT / 'client'), str(ROOT / 'kernels')]!r}]; "
    )
    command = [sys.executable, "-I", "-c", hide + program, str(site), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=site)


def test_the_wheel_holds_the_client_and_the_contract_alone(installed: Path) -> None:
    packages = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert packages == {"motet", "contract"}
    for package, source in (("motet", ROOT / "client" / "motet"), ("contract", ROOT / "contract")):
        modules = {str(path.relative_to(source)) for path in source.rglob("*.py")}
        assert {str(path.relative_to(installed / package)) for path in (installed / package).rglob("*.py")} == modules
        assert (installed / package / "py.typed").is_file(), "type checkers read the package's own annotations"


def test_the_client_works_without_the_server(installed: Path) -> None:
    said = run(installed, "import motet, contract; from motet import Client; print(motet.__file__, contract.__file__)")
    assert said.returncode == 0, said.stderr
    assert all(path.startswith(str(installed)) for path in said.stdout.split())
    gone = run(
        installed, "from importlib.util import find_spec; print([n for n in ('service', 'worker', 'deploy') if find_spec(n)])"
    )
    assert gone.stdout.strip() == "[]"


def test_its_types_are_there_for_whoever_imports_it(installed: Path, tmp_path: Path) -> None:
    script = tmp_path / "uses.py"
    script.write_text(
        "from motet import AsyncClient, Client\n\n"
        "reveal_type(Client().tasks.wait('task_1').winner)\n"
        "for task in Client().tasks.list(): reveal_type(task.base_val_loss)\n"
        "async def go() -> None:\n"
        "    async with AsyncClient() as client: reveal_type(await client.files.upload('rows.jsonl'))\n"
        "Client().tasks.get(3)\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file", os.devnull, str(script)]
    environment = os.environ | {"MYPYPATH": str(installed)}
    said = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment).stdout
    for found in ('"motet.api.resources.tasks.Winner | None"', '"float | None"', '"motet.api.resources.files.File"'):
        assert f"Revealed type is {found}" in said, said
    assert "error: Argument 1 has incompatible type" in said
    assert "Found 1 error" in said


def test_up_without_the_server_says_where_it_is(installed: Path) -> None:
    said = run(installed, "from motet.cli import main; main()", "up")
    assert said.returncode != 0
    assert "the local stack is not installed" in said.stdout + said.stderr
    assert "Traceback" not in said.stderr
