"""`python -m deploy.images packages --python python3.12` and `python -m deploy.images digests`: write the locks anew."""

import argparse
import sys
from pathlib import Path

from deploy.images import image_digests, package_locks
from deploy.images.lock_error import LockError

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.images", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    packages = commands.add_parser("packages", help="the packages of the images, by sha256: asks the package index")
    packages.add_argument("--python", default=sys.executable, help="a Python 3.12 with pip; left out, this one")
    commands.add_parser("digests", help="the base images, by digest: asks their registries, through Docker's buildx")
    given = parser.parse_args()
    try:
        written = package_locks.write(ROOT, given.python) if given.command == "packages" else [image_digests.write(ROOT)]
    except LockError as error:
        sys.exit(f"motet: {error}")
    for path in written:
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
