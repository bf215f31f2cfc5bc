"""The packages of the images as requirement files with sha256, resolved by pip within constraints.txt. Knows no Docker.

They are for CPython 3.12 on Linux x86-64 with glibc 2.28 or newer, the images' platform: one wheel of each package. torch and
the CUDA libraries that it brings, which constraints.txt does not pin, are a file of their own (`torch`), so that torch from
another index (TORCH_INDEX) can stand in for it.
"""

import json
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.images.lock_error import LockError

PYTHON = "3.12"
TOOLS = ("pip", "setuptools", "cyclonedx-bom")  # what makes the images, and is in none of them
EXTRAS = {"service": ("service", "backup"), "worker": ("worker",), "demo": ("worker", "client", "demo")}
NAMES = ("tools", "service", "torch", "worker", "demo")
HEADER = f"""\
# Written by `python -m deploy.images packages`: what pip takes for CPython {PYTHON} on Linux x86-64, within constraints.txt.
"""
_GLIBC = range(17, 29)


@dataclass(frozen=True)
class Pin:
    name: str
    version: str
    sha256: str

    @property
    def key(self) -> str:
        return normalised(self.name)

    def __str__(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def folder(root: Path) -> Path:
    return root / "deploy" / "images" / "locks"


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read(path: Path) -> list[Pin]:
    """The pins of a lock. Raises LockError at a line that is none."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    found = [re.fullmatch(r"([\w.-]+)==([\w.!]+) --hash=sha256:([0-9a-f]{64})", line) for line in lines]
    wrong = [line for line, match in zip(lines, found, strict=True) if match is None]
    if wrong:
        raise LockError(f"{path} has a line that is no pin: {wrong[0]}. Fix: write the locks anew")
    return [Pin(*match.groups()) for match in found if match is not None]


def write(root: Path, python: str) -> list[Path]:
    """Ask pip of this interpreter, and write all locks; returns them. Raises LockError."""
    version = _said([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
    if version != PYTHON:
        raise LockError(
            f"{python} is Python {version}, the images have {PYTHON}, and pip decides as of the one that runs it. "
            f"Fix: --python /path/to/python{PYTHON}"
        )
    pinned = {
        normalised(line.partition("==")[0]) for line in (root / "constraints.txt").read_text().splitlines() if "==" in line
    }
    found = {name: _resolved(root, python, requirements(root, extras)) for name, extras in EXTRAS.items()}
    torch = {key: pin for key, pin in found["worker"].items() if key == "torch" or key not in pinned}
    locks = {
        "tools": _resolved(root, python, TOOLS),
        "service": found["service"],
        "torch": torch,
        "worker": _without(found["worker"], torch),
        "demo": _without(found["demo"], found["worker"]),
    }
    written = []
    for name, pins in locks.items():
        path = folder(root) / f"{name}.txt"
        path.write_text(HEADER + "".join(f"{pin}\n" for _, pin in sorted(pins.items())))
        written.append(path)
    return written


def requirements(root: Path, extras: Iterable[str]) -> tuple[str, ...]:
    """What pyproject.toml asks for with these extras."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    of_extras = [line for extra in extras for line in project["optional-dependencies"][extra]]
    return tuple(dict.fromkeys([*project["dependencies"], *of_extras]))


def _without(pins: Mapping[str, Pin], others: Mapping[str, Pin]) -> dict[str, Pin]:
    return {key: pin for key, pin in pins.items() if key not in others}


def _resolved(root: Path, python: str, asked: Iterable[str]) -> dict[str, Pin]:
    """The whole closure by normalised name, as pip would install it into an empty environment."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [python, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--no-input"]
        command += ["--python-version", PYTHON, "--implementation", "cp", "--only-binary", ":all:", "--report", report.name]
        command += [word for glibc in _GLIBC for word in ("--platform", f"manylinux_2_{glibc}_x86_64")]
        command += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux1_x86_64"]
        _said([*command, "--constraint", str(root / "constraints.txt"), *asked])
        items = json.loads(Path(report.name).read_text())["install"]
    pins = [_pin(item["metadata"], item["download_info"]) for item in items]
    return {pin.key: pin for pin in pins}


def _pin(metadata: Mapping[str, str], download: Mapping[str, Mapping[str, Mapping[str, str]]]) -> Pin:
    pin = Pin(metadata["name"], metadata["version"], download.get("archive_info", {}).get("hashes", {}).get("sha256", ""))
    if "+" in pin.version or not pin.sha256:
        raise LockError(
            f"pip found {pin.name} {pin.version} in an index or a folder that this machine adds, where the images do not look. "
            "Fix: PIP_CONFIG_FILE=/dev/null, without PIP_EXTRA_INDEX_URL and PIP_FIND_LINKS"
        )
    return pin


def _said(command: list[str]) -> str:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LockError(f"there is no {command[0]}. Fix: install it, or name another") from None
    if ran.returncode != 0:
        raise LockError(f"{command[0]} failed: {ran.stderr.strip() or 'it said nothing'}")
    return ran.stdout
