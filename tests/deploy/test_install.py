"""What `make` does before there is anything to run: the preflight's obstacles, the pins, the targets it offers."""

import ast
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from deploy import install, preflight

ROOT = Path(__file__).parent.parent.parent
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split("\n") if "==" in line)
PINNED = {canonicalize_name(name): Version(version) for name, version in PINS.items()}
PYTHONS = ("3.11.2", "3.11.9", "3.12.4")


def test_this_machine_has_no_obstacles(tmp_path: Path) -> None:
    assert list(preflight.obstacles(tmp_path)) == []


def test_the_preflight_can_be_read_by_an_old_python() -> None:
    ast.parse(Path(preflight.__file__).read_text(), feature_version=(3, 6))


@pytest.mark.parametrize(
    ("owner", "name", "value", "says"),
    [
        (platform, "machine", lambda: "aarch64", "this is Linux aarch64"),
        (platform, "libc_ver", lambda: ("", ""), "another C library"),
        (platform, "libc_ver", lambda: ("glibc", "2.17"), "this system has glibc 2.17"),
        (sys, "version_info", (3, 9, 2), "Motet needs Python 3.11 or newer"),
        (preflight.os, "access", lambda *_: False, "cannot be written"),
        (shutil, "disk_usage", lambda _: SimpleNamespace(free=2**30), "1.0 GiB free, Motet needs 4"),
        (preflight.importlib.util, "find_spec", lambda name: None, "no module venv and no module ensurepip"),
    ],
)
def test_every_obstacle_is_named_with_its_fix(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, owner: object, name: str, value: object, says: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, value)
        (obstacle,) = preflight.obstacles(tmp_path)
    assert says in obstacle
    assert "Fix: " in obstacle


def test_every_package_that_gets_installed_is_pinned_and_of_that_version() -> None:
    """Also what an older or newer Python would need on top. torch pins its own CUDA libraries."""
    seen: set[str] = set()
    waiting = [(Requirement("motet[dev]"), "")]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if f"{name}[{requirement.extras}]" in seen or name.startswith(("nvidia-", "cuda-")):
            continue
        seen.add(f"{name}[{requirement.extras}]")
        assert name == "motet" or name in PINNED, f"{requirement} is not pinned"
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:  # only another Python needs it
            continue
        if name != "motet":
            assert Version(found.version).base_version == PINNED[name].base_version, f"{name} is installed as {found.version}"
        for text in found.requires or ():
            needed = Requirement(text)
            if any(wanted(needed, extra, python) for extra in (requirement.extras or {""}) for python in PYTHONS):
                waiting.append((needed, extra))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_pins_resolve_together_by_pips_own_resolver(python: str, tmp_path: Path) -> None:
    """Asks the package index, and installs nothing. pip reads markers as of the Python that runs it: see the test above."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = sorted({line for lines in extras.values() for line in lines if not line.startswith("motet[")})
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--no-input"]
    command += ["--python-version", python, "--implementation", "cp", "--only-binary", ":all:", "--report", str(report)]
    command += [word for glibc in range(17, 29) for word in ("--platform", f"manylinux_2_{glibc}_x86_64")]
    command += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux1_x86_64"]
    ran = subprocess.run(
        [*command, "--constraint", str(ROOT / "constraints.txt"), *asked], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    chosen = {item["metadata"]["name"]: item["metadata"]["version"] for item in json.loads(report.read_text())["install"]}
    assert {"torch", "fastapi", "peft"} <= chosen.keys()
    for name, found in chosen.items():
        if not name.startswith(("nvidia-", "cuda-")):
            assert Version(found).base_version == PINNED[canonicalize_name(name)].base_version, name


def wanted(requirement: Requirement, extra: str, python: str) -> bool:
    environment = {"extra": extra, "python_full_version": python, "python_version": python.rpartition(".")[0]}
    return requirement.marker is None or requirement.marker.evaluate(environment)


def test_torch_is_installed_by_its_pin() -> None:
    assert install.pin_of("torch") == f"torch=={PINS['torch']}"


def test_what_is_not_there_in_the_pinned_version_is_installed() -> None:
    pins = ["# why", "", "torch==2.13.0", "ast_serialize==0.13.1", "fastapi==0.165.0", "redis==8.1.0"]
    there = ["torch==2.13.0+cpu", "ast-serialize==0.13.1", "fastapi==0.164.9", "motet==0.1.0"]
    assert install.without(pins, there) == ["fastapi==0.165.0", "redis==8.1.0"]


def test_byte_code_is_written_for_rooms_that_exist() -> None:
    assert [module for room in install.ROOMS for module in room if importlib.util.find_spec(module) is None] == []


def test_make_lets_byte_code_be_written() -> None:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    asked = ["make", "--no-print-directory", "--eval", "said: ; @echo [$$PYTHONDONTWRITEBYTECODE]", "said"]
    assert subprocess.run(asked, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_make_says_what_can_be_made() -> None:
    said = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    offered = set(re.findall(r"^make (\S+)", said, re.MULTILINE))
    assert offered == {"help", "install", "demo", "up", "test", "test-ci", "test-all", "test-gpu", "lint", "openapi", "sbom"}
