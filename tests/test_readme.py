"""The README is true: its tree is the repository's, its targets exist, and its commands work against a running Motet."""

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from motet import Client
from motet.cli import app
from motet.local.example_files import register_base
from motet.local.stack_process import Stack, ready_of
from typer.testing import CliRunner

from contract.states import JOB_TRANSITIONS, TASK_TRANSITIONS
from tests.walk.house import ONE_THREAD

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BY_FOLDER = ("tests", "benchmarks")  # one line stands for all that is in them


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def tree() -> list[str]:
    """Every path of the README's tree; folders end in a slash."""
    (text,) = blocks("tree")
    paths, above = [], []
    for line in text.splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        above = [*above[:depth], name]
        paths.append("".join(above))
    return paths


def test_the_tree_names_nothing_that_is_not_there() -> None:
    missing = [path for path in tree() if not (ROOT / path).exists()]
    assert not missing
    assert len(set(tree())) == len(tree())


def test_the_tree_has_a_line_for_every_file() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.fail("the tree is compared with git's list of files: run this in a clone")
    known = set(tree())
    absent = []
    for file in listed.stdout.split():
        parts = file.split("/")
        folded = parts[0] in BY_FOLDER and parts[0] + "/" in known
        empty = parts[-1] == "__init__.py" and not (ROOT / file).read_text().strip()
        if (ROOT / file).exists() and file not in known and not folded and not empty:
            absent.append(file)
    assert not absent, "add a line to the README's tree for each"


def test_every_make_target_is_there() -> None:
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", README)) <= made | {"and"}


def test_the_state_tables_are_the_contracts() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for name, table in (("task", TASK_TRANSITIONS), ("job", JOB_TRANSITIONS)):
        (rows,) = re.findall(rf"^\| {name} \| may become \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE)
        told = {}
        for row in rows.splitlines():
            before, after = (cell.strip() for cell in row.strip("|").split("|"))
            told[before] = set(after.split(", ")) - {""}
        assert told == {before.value: {a.value for a in after} for before, after in table.items()}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of somebody beside a running stack that knows the example's base."""
    state = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MOTET_API_URL", "MOTET_API_KEY", "MOTET_ADMIN_KEY", "MOTET_PORT"):
            patch.delenv(name, raising=False)
        patch.setenv("MOTET_STATE_DIR", str(state))
        for name, value in ONE_THREAD.items():
            patch.setenv(name, value)
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        with Stack(["--device", "cpu"]) as stack:
            assert any(ready_of(event) for event in stack.events())
            with Client() as client:
                register_base(client)
            yield dict(os.environ)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def run(words: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_walk_with_curl(running: dict[str, str], folder: Path) -> None:
    said = run(["bash", "-c", "set -euo pipefail\n" + "\n".join(blocks("bash"))], folder, running)
    assert "succeeded" in said
    assert "adapter_model.safetensors" in said
    assert '"object":"preview"' in said
    assert '"field":"search_space.rank[0]"' in said
    assert 'motet_tasks{status="succeeded"} 1.0' in said
    assert (folder / "my-backup" / "database.dump").is_file()
    restored_and_runs(folder / "restored", running)


def restored_and_runs(state: Path, environment: dict[str, str]) -> None:
    """What was restored is a stack with the same task, the same adapter and the same keys."""
    credentials = json.loads((Path(environment["MOTET_STATE_DIR"]) / "credentials.json").read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTET_STATE_DIR", str(state))
        with Stack(["--device", "cpu", "--workers", "0"]) as stack:
            ready = next(found for event in stack.events() if (found := ready_of(event)))
            with Client(api_url=ready.api_url, key=credentials["demo_key"]) as client:
                (task,) = (task for task in client.tasks.list() if task.status == "succeeded")
                assert client.adapters.download(task.winner.adapter_id, state / "adapter").is_dir()


def test_the_python(running: dict[str, str], folder: Path) -> None:
    (script,) = blocks("python")
    said = run([sys.executable, "-c", script], folder, running)
    assert said.startswith("succeeded")
    assert (folder / "my-adapter" / "adapter_config.json").is_file()


def test_the_openai_code(running: dict[str, str], folder: Path) -> None:
    (script,) = blocks("python openai")
    said = run([sys.executable, "-c", script], folder, running)
    assert "succeeded ft:example-7m:" in said
    with tarfile.open(folder / "openai-adapter.tar.gz") as archive:
        assert {"adapter_model.safetensors", "README.md"} <= {Path(name).name for name in archive.getnames()}


def test_a_spec_is_previewed(running: dict[str, str], folder: Path) -> None:
    said = run([sys.executable, "-c", "from motet.cli import main; main()", "preview", "examples/spec.yaml"], folder, running)
    assert said.count("of them learned") == 5
    assert "<|assistant|>«" in said.replace("\n", "")
    with Client() as client:
        assert not [file for file in client.files.list() if file.name == "train.jsonl"]


def test_every_motet_command_is_there() -> None:
    named = set(re.findall(r"^motet ([a-z]+)", "".join(blocks("text")), re.MULTILINE))
    assert len(named) == 13
    for name in named:
        said = CliRunner().invoke(app, [name, "--help"])
        assert said.exit_code == 0, said.output
        assert name in said.output
