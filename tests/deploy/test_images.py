"""What images are made of: packages by sha256, base images by digest, and the bill of materials. Asks no index or registry."""

import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from deploy.images import image_digests, package_locks
from deploy.images.lock_error import LockError
from deploy.images.package_locks import EXTRAS, NAMES, TOOLS, Pin, normalised, requirements

ROOT = Path(__file__).parent.parent.parent
LOCKS = {name: {pin.key: pin for pin in package_locks.read(package_locks.folder(ROOT) / f"{name}.txt")} for name in NAMES}
PINS = {
    normalised(name): version
    for name, version in (line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
}
IMAGES = {"service": ("service",), "worker": ("torch", "worker"), "demo": ("torch", "worker", "demo"), "tools": ("tools",)}
AGAIN = "python -m deploy.images packages writes the locks anew"
PYTHON = {"python_full_version": "3.12.0", "python_version": "3.12"}
DIGEST = "sha256:" + 32 * "ab"


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_has_the_versions_of_the_constraints(name: str) -> None:
    pinned = {key: pin.version for key, pin in LOCKS[name].items() if key in PINS}
    assert pinned == {key: PINS[key] for key in pinned}, AGAIN
    free = {key for key in LOCKS[name] if key not in PINS}
    assert all(key.startswith(("nvidia-", "cuda-")) for key in free), "torch alone brings packages that are not pinned"
    assert not free or name == "torch"


@pytest.mark.parametrize("image", IMAGES)
def test_the_locks_of_an_image_hold_all_that_it_needs_and_nothing_else(image: str) -> None:
    """Walks the requirements as a Python 3.12 on Linux reads them. CUDA libraries are torch's own: pip looked them up."""
    asked = TOOLS if image == "tools" else requirements(ROOT, EXTRAS[image])
    needed: set[str] = set()
    waiting = [(Requirement(text), "") for text in asked]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate(PYTHON | {"extra": extra}):
            continue
        name = normalised(requirement.name)
        for wanted in sorted(requirement.extras or {""}):
            if (known := f"{name}[{wanted}]") not in needed:
                needed.add(known)
                waiting += [(Requirement(text), wanted) for text in importlib.metadata.distribution(name).requires or ()]
    held = {key for lock in IMAGES[image] for key in LOCKS[lock] if not key.startswith(("nvidia-", "cuda-"))}
    assert held == {name.partition("[")[0] for name in needed}, AGAIN


def test_no_two_locks_of_an_image_hold_one_package() -> None:
    for locks in IMAGES.values():
        keys = [key for name in locks for key in LOCKS[name]]
        assert len(keys) == len(set(keys))
    assert set(EXTRAS) | {"torch", "tools"} == set(NAMES) == {path.stem for path in package_locks.folder(ROOT).iterdir()}


def test_a_lock_names_no_host_and_no_line_without_a_hash(tmp_path: Path) -> None:
    assert not [name for name in NAMES if "://" in (package_locks.folder(ROOT) / f"{name}.txt").read_text()]
    for line in ("numpy==2.4.6", "numpy>=2 --hash=sha256:" + 64 * "0", f"numpy @ file:///x --hash={DIGEST}"):
        (tmp_path / "lock.txt").write_text(f"# why\n{line}\n")
        with pytest.raises(LockError, match="no pin"):
            package_locks.read(tmp_path / "lock.txt")


def test_each_extra_is_one_of_the_project() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {extra for of_image in EXTRAS.values() for extra in of_image} <= set(extras)


@pytest.mark.parametrize(
    ("version", "hashes", "refused"),
    [("2.13.0", {"sha256": 64 * "0"}, False), ("2.13.0+cpu", {"sha256": 64 * "0"}, True), ("1", {}, True)],
)
def test_what_this_machine_alone_has_is_not_locked(version: str, hashes: dict[str, str], refused: bool) -> None:
    asked = {"name": "torch", "version": version}, {"archive_info": {"hashes": hashes}}
    if refused:
        with pytest.raises(LockError, match="PIP_CONFIG_FILE=/dev/null"):
            package_locks._pin(*asked)
    else:
        assert package_locks._pin(*asked) == Pin("torch", version, 64 * "0")


def test_locks_are_written_by_the_images_python_alone(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.9\n")
    other.chmod(0o755)
    with pytest.raises(LockError, match=r"is Python 3\.9, the images have 3\.12.*Fix: "):
        package_locks.write(ROOT, str(other))


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A program `docker` that runs these lines of shell, in a folder with the files that name images."""

    def make(lines: str) -> Path:
        for name in ("Dockerfile", "docker-compose.yml"):
            (tmp_path / name).write_text((ROOT / name).read_text())
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "docker").write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / "bin" / "docker").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        return tmp_path

    return make


def test_base_images_are_locked_by_the_digest_of_their_tags(docker: Callable[[str], Path]) -> None:
    root = docker(
        f'''[ "$1 $2 $3 $4 $5" = "buildx imagetools inspect --format {{{{json .Manifest}}}}" ] || exit 2
echo '{{"mediaType": "application/vnd.oci.image.index.v1+json", "digest": "{DIGEST}", "size": 1}}'''
        + "'"
    )
    lines = image_digests.write(root).read_text().splitlines()
    assert lines[0].startswith("# ")
    assert lines[1:] == [
        f"POSTGRES_IMAGE=postgres:18@{DIGEST}",
        f"PYTHON_IMAGE=python:3.12-slim@{DIGEST}",
        f"VALKEY_IMAGE=valkey/valkey:9@{DIGEST}",
        f"VLLM_IMAGE=vllm/vllm-openai:v0.33.0@{DIGEST}",
    ]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("echo 'no such host' >&2; exit 1", "no such host"),
        ("echo latest", "names no digest"),
        ("echo '{}'", "names no digest"),
        ('echo \'{"digest": "sha256:1"}\'', "names no digest"),
    ],
)
def test_no_digest_is_invented(docker: Callable[[str], Path], lines: str, says: str) -> None:
    root = docker(lines)
    with pytest.raises(LockError, match=says):
        image_digests.write(root)
    assert not (root / "images.env").exists()


def test_a_base_image_is_named_once(tmp_path: Path) -> None:
    for name, text in {
        "Dockerfile": "ARG PYTHON_IMAGE=python:3.12-slim\n",
        "docker-compose.yml": "x: ${PYTHON_IMAGE:-python:3}",
    }.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(LockError, match="give it one image"):
        image_digests.named(tmp_path)


@pytest.mark.timeout(900)
def test_the_bill_of_materials_lists_what_is_installed_and_no_moment(tmp_path: Path) -> None:
    """As `make sbom` and the images make it; the tool validates it by CycloneDX's schema."""
    words = ["environment", "--output-reproducible", "--output-file"]
    tool = Path(sys.executable).parent / "cyclonedx-py"
    subprocess.run([tool, *words, tmp_path / "bill.json", sys.executable], check=True, capture_output=True)
    bill = json.loads((tmp_path / "bill.json").read_text())
    assert (bill["bomFormat"], "serialNumber" in bill, "timestamp" in bill["metadata"]) == ("CycloneDX", False, False)
    listed = {normalised(one["name"]): one for one in bill["components"]}
    assert listed.keys() == {normalised(one.metadata["Name"]) for one in importlib.metadata.distributions()}
    versions = {key: Version(one["version"]).public for key, one in listed.items() if key in PINS}
    assert versions == {key: PINS[key] for key in versions}
    named = {key for lock in LOCKS.values() for key in lock if not key.startswith(("nvidia-", "cuda-"))}
    assert named <= listed.keys()
    assert listed["torch"]["licenses"]
    called = f"cyclonedx-py {' '.join(words)}"
    assert called in (ROOT / "Makefile").read_text()
    assert (ROOT / "Dockerfile").read_text().count(called) == 3
