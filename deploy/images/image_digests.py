"""The base images by digest, as Docker's buildx reads them from their registries, in images.env. Knows no packages.

The Dockerfile and docker-compose.yml name each image once, as the default of a variable (PYTHON_IMAGE=python:3.12-slim).
images.env sets these variables to the same image at the digest that its tag has now.
"""

import json
import re
import subprocess
from pathlib import Path

from deploy.images.lock_error import LockError

HEADER = "# Written by `python -m deploy.images digests`: the base images at the digests that their tags had then.\n"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def named(root: Path) -> dict[str, str]:
    """The images by variable. Raises LockError where two files give one variable different images."""
    found: dict[str, str] = {}
    dockerfile = re.findall(r"^ARG (\w+_IMAGE)=(\S+)$", (root / "Dockerfile").read_text(), re.MULTILINE)
    compose = re.findall(r"\$\{(\w+_IMAGE):-([^}]+)\}", (root / "docker-compose.yml").read_text())
    for variable, image in [*dockerfile, *compose]:
        if found.setdefault(variable, image) != image:
            raise LockError(f"{variable} is {found[variable]} and {image}. Fix: give it one image in both files")
    return found


def write(root: Path) -> Path:
    """Ask for every digest, then write images.env; returns it. Raises LockError."""
    lines = [f"{variable}={image}@{digest(image)}\n" for variable, image in sorted(named(root).items())]
    path = root / "images.env"
    path.write_text(HEADER + "".join(lines))
    return path


def digest(image: str) -> str:
    """Of the image's index, so of all its platforms. Raises LockError."""
    command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}", image]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise LockError("there is no docker. Fix: run this where Docker, its buildx and the images' registries are") from None
    if ran.returncode != 0:
        raise LockError(
            f"docker cannot tell the digest of {image}: {ran.stderr.strip()}. Fix: run this where buildx is installed and the "
            "image's registry answers"
        )
    try:
        said = str(json.loads(ran.stdout)["digest"])
    except (ValueError, KeyError, TypeError):
        said = ran.stdout.strip()
    if not _DIGEST.fullmatch(said):
        raise LockError(f"docker names no digest of {image}, but says {said[:200]!r}. Fix: update buildx to 0.10 or newer")
    return said
