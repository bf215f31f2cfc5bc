"""Checks whether this machine can install Motet, and what it will download. Names every obstacle with its fix.

Knows nothing of Motet itself, uses the standard library alone, and sticks to syntax that an old Python can still read.
"""

import importlib.util
import os
import platform
import shutil
import sys

GIB = 2**30
NEEDED_GIB = 4
ROOMY_GIB = 10
OLDEST_PYTHON = (3, 11)
OLDEST_GLIBC = (2, 28)


def numbers(version):
    """The leading numbers of a dotted version: "2.36" is (2, 36)."""
    return tuple(int(word) for word in version.split(".") if word.isdigit())


def obstacles(folder):
    """Obstacles to an installation into `folder`, as sentences that end with the fix."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        yield f"Motet runs on Linux x86-64, this is {system} {machine}. Fix: use such a machine, container or VM."
    if sys.version_info[:2] < OLDEST_PYTHON:
        have = platform.python_version()
        yield (
            f"Motet needs Python 3.11 or newer, {sys.executable} is {have}. Fix: install one (Debian, Ubuntu: apt-get install "
            "python3.11 python3.11-venv) or name it: make PYTHON=/path/to/python3.12"
        )
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        package = "python{}.{}-venv".format(*sys.version_info[:2])
        yield f"{sys.executable} has no module {' and no module '.join(missing)}. Fix: apt-get install {package}"
    library, version = platform.libc_ver()
    if system == "Linux" and (library != "glibc" or numbers(version) < OLDEST_GLIBC):
        yield (
            f"the wheels need glibc 2.28 or newer, this system has {library or 'another C library'} {version}. Fix: use "
            "Debian 10, Ubuntu 20.04, RHEL 8 or anything newer (not Alpine)."
        )
    if not os.access(folder, os.W_OK):
        yield f"{folder} cannot be written by this user. Fix: chown it, or clone Motet into a folder of yours."
    free = shutil.disk_usage(folder).free / GIB
    if free < NEEDED_GIB:
        yield f"{folder} has {free:.1f} GiB free, Motet needs {NEEDED_GIB}. Fix: free some, or clone Motet onto a larger disk."


def main():
    folder = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")
    found = list(obstacles(folder))
    for obstacle in found:
        print("motet: " + obstacle, file=sys.stderr)
    if found:
        return 1
    if os.path.exists(os.path.join(folder, ".venv", "bin", "python")):
        print(f"Bringing {folder}/.venv up to date.")
        return 0
    where = "TORCH_INDEX" if os.environ.get("TORCH_INDEX") else "the package index"
    print(f"Installing into {folder}/.venv. Downloads: about 0.6 GB, or 3.5 GB where {where} has torch with CUDA.")
    free = shutil.disk_usage(folder).free / GIB
    if free < ROOMY_GIB:
        print(f"Note: {free:.1f} GiB are free here; torch with CUDA takes up to {ROOMY_GIB}. TORCH_INDEX can name one without.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
