"""The documents are true: the map of rooms is the repository's, links and targets exist, every command works against Motet."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from motet import Client
from motet.local.example_files import register_base
from motet.local.stack_process import Stack, ready_of

from contract.states import JOB_TRANSITIONS, TASK_TRANSITIONS
from tests.walk.running_stack import ONE_THREAD

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
pytestmark = pytest.mark.timeout(600)  # what is asked of a running stack trains, on a slow machine for minutes
PRODUCT = ("contract", "service", "worker", "kernels", "client", "migrations", "deploy")


def blocks(language: str, *pages: str) -> list[str]:
    """The fenced blocks of one language on these pages, in order."""
    text = "\n".join(page(name) for name in pages)
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def packages() -> set[str]:
    """Every folder of the product that holds modules, as a path from the root."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.fail("rooms are compared with git's list of files: run this in a clone")
    folders = {str(Path(file).parent) for file in listed.stdout.split() if (ROOT / file).exists()}
    return {folder for folder in folders if folder.partition("/")[0] in PRODUCT}


def test_the_map_of_rooms_names_every_room_and_no_other() -> None:
    (text,) = blocks("rooms", "docs/ARCHITECTURE.md")
    paths, above = [], list[str]()
    for line in text.splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        above = [*above[:depth], name]
        paths.append("".join(above).rstrip("/"))
    assert len(set(paths)) == len(paths)
    assert set(paths) == packages()


def test_every_room_says_what_it_is() -> None:
    silent = [
        folder
        for folder in sorted(packages() - {"migrations/versions"})
        if not (ROOT / folder / "__init__.py").exists()
        or not ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text()))
    ]
    assert not silent, "each __init__.py says in about five lines what enters, what leaves, what the room must not know"


def test_the_readme_stays_short() -> None:
    assert len(README.splitlines()) <= 250


def test_links_between_pages_lead_somewhere() -> None:
    for name in PAGES:
        for target in re.findall(r"\]\(((?!https?:)[^)#]+)", page(name)):
            assert ((ROOT / name).parent / target).exists(), f"{name} links to {target}"


def test_every_module_that_pages_name_is_there() -> None:
    """By its path, or by as much of its end as tells which it is."""
    known = [
        f"/{path.relative_to(ROOT)}"
        for top in (*PRODUCT, "tests", "benchmarks", "examples")
        for path in (ROOT / top).rglob("*.py")
    ]
    for name in set(PAGES) - {"docs/SERVING.md"}:  # which names modules of vLLM
        named = set(re.findall(r"`([\w/]+\.py)", page(name)))
        assert not {module for module in named if not any(path.endswith(f"/{module}") for path in known)}, name


def test_every_make_target_is_there() -> None:
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^    |`)make ([a-z-]+)", "\n".join(map(page, PAGES)), re.MULTILINE)) <= made


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
    said = run(
        [
            "bash",
            "-c",
            "set -euo pipefail\n" + "\n".join(blocks("bash", "README.md", "docs/TUTORIAL.md", "docs/OPERATIONS.md")),
        ],
        folder,
        running,
    )
    assert "succeeded" in said
    assert "adapter_model.safetensors" in said
    assert '"object":"preview"' in said
    assert '"field":"search_space.rank[0]"' in said
    assert re.search(r'motet_tasks{status="succeeded"} [12]\.0', said)
    assert list((folder / "my-backup").glob("secrets-*.json"))
    restored_and_runs(folder / "restored", running)


def restored_and_runs(state: Path, environment: dict[str, str]) -> None:
    """What was restored is a stack with the same task, the same adapter and the same keys."""
    credentials = json.loads((Path(environment["MOTET_STATE_DIR"]) / "credentials.json").read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTET_STATE_DIR", str(state))
        with Stack(["--device", "cpu", "--workers", "0"]) as stack:
            ready = next(found for event in stack.events() if (found := ready_of(event)))
            with Client(api_url=ready.api_url, key=credentials["demo_key"]) as client:
                task = next(task for task in client.tasks.list() if task.status == "succeeded")
                assert client.adapters.download(task.winner.adapter_id, state / "adapter").is_dir()


def test_the_python(running: dict[str, str], folder: Path) -> None:
    an_adapter_of_another_task(folder)
    (script,) = blocks("python", "README.md")
    said = run([sys.executable, "-c", script], folder, running)
    assert said.startswith("succeeded")
    assert (folder / said.split()[-1] / "adapter_config.json").is_file()


def an_adapter_of_another_task(folder: Path) -> None:
    """What `motet download last -o my-adapter`, a step before, has left there."""
    (folder / "my-adapter").mkdir(exist_ok=True)
    (folder / "my-adapter" / "adapter_config.json").write_text("{}")


def test_the_openai_code(running: dict[str, str], folder: Path) -> None:
    (script,) = blocks("python openai", "README.md")
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


def test_every_motet_command_of_the_readme_runs_as_it_stands_there(running: dict[str, str], tmp_path: Path) -> None:
    """In the README's order, on the example's files and a short spec; each changing command gets a task that it can change."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("base-model"))
    spec = yaml.safe_load((tmp_path / "examples" / "spec.yaml").read_text())
    short = {"search_space": {"learning_rate": [1e-3, 5e-3]}, "training": {"epochs": 1, "max_steps": 3, "max_seq_len": 160}}
    (tmp_path / "examples" / "spec.yaml").write_text(yaml.safe_dump(spec | short))
    long = spec | {"training": {"epochs": 50, "max_seq_len": 160}, "early_exit": {"policy": "none"}}
    (tmp_path / "examples" / "long.yaml").write_text(yaml.safe_dump(long))
    environment = running | {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    stack = json.loads((Path(running["MOTET_STATE_DIR"]) / "credentials.json").read_text())

    def motet(*words: str, stdin: str = "") -> str:
        command = [sys.executable, "-c", "from motet.cli import main; main()", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"motet {' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    lines = re.findall(r"^motet (.+?)(?:   |$)", "".join(blocks("text", "README.md")), re.MULTILINE)
    assert len(lines) == 24
    first = None
    for line in lines:
        words, stdin = shlex.split(line), ""
        if words[0] == "compare":
            first = json.loads(motet("tasks", "--json"))[0]["id"]
            words[-1] = first
        elif words[0] == "ask":
            words[1] = str(first)
        elif words[0] == "login":
            words[1], stdin = stack["api_url"], stack["demo_key"]
        elif words[0] == "doctor":
            motet("use", "local")
        said = motet(*words, stdin=stdin)
        if words[0] == "download":
            assert (tmp_path / words[-1] / "adapter_model.safetensors").is_file()
        assert said.strip(), line
        if words[0] == "ask":  # not before: beside training an answer has a twelfth of an executor's time
            motet("submit", "examples/long.yaml")  # for the commands that follow, which pause, cancel and delete it
    assert [task["id"] for task in json.loads(motet("tasks", "--json"))][:1] == [first], "the paused one was deleted"


def test_the_example_with_curl(running: dict[str, str], folder: Path) -> None:
    said = run(["bash", "examples/with_curl.sh"], folder, running)
    (saved,) = folder.glob("task_*.tar.gz")
    assert saved.name in said
    assert '"status":"succeeded"' in said


def test_the_example_with_the_openai_sdk(running: dict[str, str], folder: Path) -> None:
    assert "succeeded ft:example-7m:" in run([sys.executable, "examples/with_openai_sdk.py"], folder, running)


def test_the_example_in_python_and_its_adapter(running: dict[str, str], folder: Path) -> None:
    an_adapter_of_another_task(folder)
    swept = run([sys.executable, "examples/sweep.py", "--steps", "4"], folder, running)
    assert "the winner's validation losses:" in swept
    saved = re.findall(r"^saved to (.+)$", swept, re.MULTILINE)[-1]
    asked = ["examples/use_adapter.py", saved, "--rows", "examples/restaurants/validation.jsonl", "--show", "1"]
    assert "adapter facts said: " in run([sys.executable, *asked], folder, running)


def test_an_adapter_is_not_tried_on_rows_without_messages(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "2 + 2?", "completion": "4"}\n')
    words = [sys.executable, "examples/use_adapter.py", "my-adapter", "--rows", str(rows)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith(f"row 1 of {rows} has no messages; --rows takes chat rows alone")


def test_the_table_of_a_finished_task(running: dict[str, str], folder: Path) -> None:
    pytest.importorskip("pandas", reason="NOT RUN: needs pandas: pip install pandas")
    finished(running)
    said = run([sys.executable, "examples/metrics_table.py"], folder, running)
    assert "best_valid" in said.splitlines()[0]


def test_the_plot_of_a_finished_task(running: dict[str, str], folder: Path) -> None:
    pytest.importorskip("matplotlib", reason="NOT RUN: needs matplotlib: pip install matplotlib")
    finished(running)
    run([sys.executable, "examples/plot_task.py", "--out", "task.svg"], folder, running)
    assert "validation loss" in (folder / "task.svg").read_text()


def finished(running: dict[str, str]) -> None:
    """There is a succeeded task."""
    with Client() as client:
        if next(client.tasks.list("succeeded"), None) is None:
            file = client.files.upload(ROOT / "examples" / "restaurants" / "validation.jsonl")
            spec = {"base_model": "example-7m", "dataset": {"file_id": file.id, "validation_fraction": 0.2}}
            made = client.tasks.create(spec | {"search_space": {"learning_rate": 1e-3}, "training": {"max_steps": 3}})
            assert client.tasks.wait(made.id, timeout=200).status == "succeeded"
