"""Installs Motet and all it needs into .venv, and shows that it is alive meanwhile. Standard library alone.

torch comes first and by its exact pin, from TORCH_INDEX too where that is set. Then everything else that constraints.txt pins,
which is all there is to install (a test checks that): so nothing is resolved, and two processes download at once, since pip
takes one package after another. pip's own words go to .venv/install.log. Older versions of the `openai` SDK lie apart in
.venv/sdk/VERSION, for the tests that hold our face against each of them.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path
from typing import IO, NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "install.log"
STAMP = VENV / "installed"
PINS = ROOT / "constraints.txt"
WHEELS = VENV / "wheels"  # until they are installed
OLDER_SDKS = ("1.109.1", "2.54.0")
ROOMS = (  # what the processes of a worker, and all others, import
    ("worker.daemon", "worker.heartbeat", "worker.executor"),
    ("service.__main__", "service.app", "service.work", "service.reconcile", "motet.cli", "deploy.devstack.stack"),
)
_NEWS = re.compile(rb"(Collecting|Downloading|Installing|Preparing|Building) ([^ (\n]+)")
_TAIL_LINES = 15


def pin_of(package: str) -> str:
    """The line of constraints.txt for a package."""
    return next(line for line in PINS.read_text().splitlines() if line.startswith(package + "=="))


def make_venv() -> None:
    """A virtual environment whose interpreter works; a broken one is made anew."""
    works = (
        PYTHON.exists() and subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0
    )
    if not works:
        venv.create(VENV, with_pip=True, clear=True)


class Ticker:
    """Says every moment what pip is doing: on a terminal in one line, elsewhere a line now and then."""

    def __init__(self, title: str) -> None:
        self.doing = "starting"
        self._title = title
        self._start = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Ticker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        end = "\r\033[K" if self._terminal else ""
        print(f"{end}{self._title}: {time.monotonic() - self._start:.0f} s", flush=True)

    def _run(self) -> None:
        while not self._over.wait(0.5 if self._terminal else 5):
            line = f"{self._title}: {time.monotonic() - self._start:.0f} s, {self.doing[:60]}"
            print(f"\r\033[K{line}" if self._terminal else line, end="" if self._terminal else "\n", flush=True)


def start_pip(*words: str, stdout: int | IO[bytes] = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """pip in the new environment, with its words on `stdout`."""
    env = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = [str(PYTHON), "-m", "pip", *words]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.STDOUT, env=env, cwd=ROOT)


def pip_install(title: str, *words: str, constrained: bool = True) -> None:
    """Run pip; on failure show its last lines and leave."""
    quiet = ("--no-input", "--progress-bar", "off")
    lean = "--no-compile"  # most modules are imported by nobody; see compile_imports
    pins = ("--constraint", "constraints.txt") if constrained else ()
    with LOG.open("ab") as log, Ticker(title) as ticker:
        process = start_pip("install", *quiet, lean, *pins, *words)
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            if news := _NEWS.search(line):
                ticker.doing = b" ".join(news.groups()).decode(errors="replace").lower()
        code = process.wait()
    if code != 0:
        fail(title)


def missing() -> list[str]:
    """The pins that are not installed."""
    command = [str(PYTHON), "-m", "pip", "list", "--format", "freeze"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return without(PINS.read_text().splitlines(), listed.splitlines())


def without(pins: list[str], there: list[str]) -> list[str]:
    """Of the lines of constraints.txt the pins that none of the installed `name==version` is."""
    installed = {_key(line) for line in there}
    return [line for line in pins if "==" in line and _key(line) not in installed]


def download(title: str, pins: list[str]) -> None:
    """Bring packages into WHEELS, half of them by each of two processes."""
    words = ("download", "--no-input", "--progress-bar", "off", "--no-deps", "--dest", str(WHEELS))
    with LOG.open("ab") as log, Ticker(title) as ticker:
        ticker.doing = f"downloading {len(pins)} packages"
        processes = [start_pip(*words, *half, stdout=log) for half in (pins[::2], pins[1::2]) if half]
        codes = [process.wait() for process in processes]
    if any(codes):
        fail(title)


def compile_imports(title: str) -> None:
    """Have Python write the byte code of all that Motet's processes import, ours included."""
    with LOG.open("ab") as log, Ticker(title) as ticker:
        ticker.doing = "importing every room"
        commands = ([PYTHON, "-c", f"import {', '.join(room)}"] for room in ROOMS)
        processes = [subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT) for command in commands]
        codes = [process.wait() for process in processes]
    if any(codes):
        fail(title)


def _key(pin: str) -> tuple[str, str]:
    """Package and version of `name==version`, as all spellings of the name are; a build's own mark (+cpu) does not count."""
    name, _, version = pin.strip().partition("==")
    return re.sub(r"[-_.]+", "-", name).lower(), version.partition("+")[0]


def fail(title: str) -> NoReturn:
    sys.stdout.write("".join(LOG.read_text(errors="replace").splitlines(keepends=True)[-_TAIL_LINES:]))
    sys.exit(f"motet: {title} failed; all that was said is in {LOG}. Fix what it names and run the same command again.")


def main() -> None:
    STAMP.unlink(missing_ok=True)
    with Ticker("virtual environment"):
        make_venv()
    LOG.write_text("")
    index = os.environ.get("TORCH_INDEX")
    pip_install("torch", pin_of("torch"), "setuptools", *(["--extra-index-url", index] if index else []))
    WHEELS.mkdir(exist_ok=True)
    pins = missing()
    download("packages", pins)
    local = ("--no-index", "--find-links", str(WHEELS), "--no-deps", "--no-build-isolation")
    pip_install("motet and the packages", *local, *pins, "--editable", ".")
    shutil.rmtree(WHEELS)
    compile_imports("byte code")
    for version in OLDER_SDKS:
        apart = ("--upgrade", "--no-deps", "--target", str(VENV / "sdk" / version), f"openai=={version}", "distro==1.9.0")
        pip_install(f"openai {version}", *apart, constrained=False)
    STAMP.touch()


if __name__ == "__main__":
    main()
