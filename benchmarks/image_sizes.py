"""What the images hold, built without Docker: `python -m benchmarks.image_sizes --python python3.12 --folder /var/tmp/x`.

Runs the RUN lines of the Dockerfile's build stages as they stand, but for the folders, which become ones below `--folder`: so
their pip commands are shown to work, and the packages' size is measured, which is an image's but for its base image and the
compiler. `--python` is the Python 3.12 that stands for the base image's. TORCH_INDEX is heeded as in a build.

The gate: a second build in the same place has the same bytes, and an ordinary user, who can write nothing of it, imports what
the image runs.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.result_file import write_result

ROOT = Path(__file__).parent.parent
STAGES = {"service": ("build-service",), "worker": ("build-worker",), "demo": ("build-worker", "build-demo")}
RUNS = {  # what an ordinary user imports
    "service": "service.app, service.background.queue_worker, service.background.reconciler",
    "worker": "worker.node.daemon, worker.executor_main",
    "demo": "motet.cli, peft",
}
USER = "10001"


class Build:
    """Stages of the Dockerfile, made below a folder. /opt, /wheels and /src of an image are folders there."""

    def __init__(self, folder: Path, python: Path) -> None:
        self._folder = folder
        self._stages = dict(_stages((ROOT / "Dockerfile").read_text()))
        folder.mkdir(parents=True)
        (folder / "bin").mkdir()
        (folder / "bin" / "python").write_text(f'#!/bin/sh\nexec {python} "$@"\n')  # a link would be taken for its home
        (folder / "bin" / "python").chmod(0o755)
        cache = folder.with_name(folder.name + ".cache")  # of downloads; an image keeps none
        variables = {"SOURCE_DATE_EPOCH": "0", "PYTHONHASHSEED": "0", "PIP_NO_COMPILE": "1", "PIP_CACHE_DIR": str(cache)}
        self._environment = os.environ | variables | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        self._environment.setdefault("TORCH_INDEX", "")
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    @property
    def packages(self) -> Path:
        return self._folder / "opt" / "motet"

    def make(self, stage: str) -> None:
        """Copy what the stage copies from the clone, and run its commands. Raises CalledProcessError."""
        source = self._folder / "src"
        for instruction, rest in self._stages[stage]:
            if instruction == "COPY" and not rest.startswith("--from="):
                *names, into = rest.split()
                for name in names:
                    self._copy(ROOT / name, source / into if into != "./" else source / name)
            elif instruction == "RUN":
                command = re.sub(r"(?<![\w./])/(opt/|wheels\b)", rf"{self._folder}/\1", rest)
                subprocess.run(["/bin/sh", "-c", command], cwd=source, env=self._environment, check=True)

    def _copy(self, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, target)


def _stages(text: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stage in re.split(r"^FROM ", re.sub(r"\\\n", " ", "\n".join(lines)), flags=re.MULTILINE)[1:]:
        first, *rest = [line for line in stage.splitlines() if line.strip()]
        yield first.split()[2], [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in rest]


def built(folder: Path, python: Path, image: str) -> tuple[dict[str, Any], str]:
    """Size and contents of one image's packages, and a digest of all their bytes."""
    began = time.monotonic()
    build = Build(folder, python)
    for stage in ("tools", "wheel", *STAGES[image]):
        build.make(stage)
    files = [path for path in sorted(build.packages.rglob("*")) if path.is_file() and not path.is_symlink()]
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(build.packages)} {path.stat().st_mode:o}\0".encode() + _sha256(path))
    byte_code = sum(path.stat().st_size for path in files if path.suffix == ".pyc")
    total = sum(path.stat().st_size for path in files)
    _import_as_a_user(build.packages, python, RUNS[image])
    row = {"image": image, "packages_mb": total / 1e6, "byte_code_mb": byte_code / 1e6, "files": len(files)}
    return row | {"seconds": time.monotonic() - began}, digest.hexdigest()


def _import_as_a_user(packages: Path, python: Path, modules: str) -> None:
    """With nothing of this environment but where the interpreter's own library is."""
    environment = ["env", "-i", "HOME=/tmp", "PATH=/usr/bin:/bin", f"LD_LIBRARY_PATH={python.resolve().parents[1] / 'lib'}"]
    command = [
        "setpriv",
        f"--reuid={USER}",
        f"--regid={USER}",
        "--clear-groups",
        *environment,
        str(packages / "bin" / "python"),
    ]
    ran = subprocess.run([*command, "-P", "-c", f"import {modules}"], cwd="/", capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--images", nargs="+", choices=STAGES, default=list(STAGES))
    given = parser.parse_args()
    rows, same = [], {}
    for image in given.images:
        digests = []
        for _ in range(2):
            row, digest = built(given.folder, given.python, image)
            digests.append(digest)
            shutil.rmtree(given.folder)
        same[image] = digests[0] == digests[1]
        rows.append(row)
        print(row, same[image])
    figures = {f"{row['image']}_mb": row["packages_mb"] for row in rows}
    print(write_result("image_sizes", {"passed": all(same.values()), "same_bytes": same}, figures, rows))


if __name__ == "__main__":
    main()
